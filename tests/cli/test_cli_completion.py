"""`reinlm completion`: bash completes verbs, options, algorithms and keys, from the script alone."""

from __future__ import annotations

import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def script() -> str:
    from reinlm.cli.completion import _SCRIPTS, algorithm_words, words_by_verb

    return _SCRIPTS["bash"](words_by_verb(), algorithm_words())


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("reinlm gen", {"generate"}),
        ("reinlm rl --alg", {"--algorithm"}),
        ("reinlm rl --algorithm gsp", {"gspo", "gspo_token"}),
        ("reinlm rl rollout.group", {"rollout.group_size="}),
        ("reinlm -q sft training.batch", {"training.batch_size="}),
        ("reinlm classical q_", {"q_learning"}),
        ("reinlm rl --model run", set()),
    ],
)
def test_bash_completes_what_can_be_typed(script, line, offered):
    words = line.split()
    probe = f"""{script}
COMP_LINE={line!r}; COMP_POINT={len(line)}; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
compopt() {{ :; }}
_reinlm_completion; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True)
    assert (set(done.stdout.split()), done.stderr) == (offered, "")
