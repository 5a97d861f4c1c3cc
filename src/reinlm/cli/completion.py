"""`reinlm completion SHELL`: a script that completes verbs, options, algorithms and keys without starting Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from reinlm.cli.app import app, command
from reinlm.cli.options import Debug
from reinlm.errors import InputError, nearest
from reinlm.program import NAME


@command()
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    debug: Debug = False,
) -> None:
    """A script that completes commands in bash, zsh or fish.

    \b
    reinlm completion bash > ~/.local/share/bash-completion/completions/reinlm
    reinlm completion zsh > ~/.zfunc/_reinlm
    reinlm completion fish > ~/.config/fish/completions/reinlm.fish

    zsh needs `fpath+=~/.zfunc` before `compinit` in ~/.zshrc.
    """
    if shell not in _SCRIPTS:
        near = nearest(shell, _SCRIPTS)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(_SCRIPTS)}"
        raise InputError(f"unknown shell {shell!r}", hint=hint)
    typer.echo(_SCRIPTS[shell](words_by_verb(), algorithm_words()))


def words_by_verb() -> dict[str, list[str]]:
    """By verb what may be typed after it: options, keys with `=`, names of algorithms where they stand alone."""
    from reinlm.classical.registry import catalogue
    from reinlm.keys import VERBS, keys_of

    words: dict[str, list[str]] = {}
    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for verb, parsed in commands.items():
        if parsed.hidden:
            continue
        words[verb] = [name for option in parsed.params for name in option.opts if name.startswith("--")]
        words[verb].append("--help")
        if verb in VERBS:
            words[verb] += [f"{key}=" for key in dict.fromkeys(key.key for key in keys_of(verb))]
    words["algorithms"] += algorithm_words()
    words["classical"] += [card.name for card in catalogue()]
    return words


def algorithm_words() -> list[str]:
    """The names after `--algorithm`."""
    from reinlm.algorithms import ALGORITHMS

    return list(ALGORITHMS)


def _bash(words: Mapping[str, list[str]], algorithms: list[str]) -> str:
    cases = "\n".join(f'        {verb}) words="{" ".join(given)}" ;;' for verb, given in words.items())
    return f"""_{NAME}_completion() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" current verb="" words="" word
    current="${{line##*[[:space:]]}}"
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$word" in -*) ;; *) verb="$word"; break ;; esac
    done
    case "$verb" in
        "") words="{" ".join(words)}" ;;
{cases}
    esac
    case "${{COMP_WORDS[COMP_CWORD-1]}}" in
        --algorithm|-a) words="{" ".join(algorithms)}" ;;
        --model|-m|--data|-d|--eval-data|--output|-o) return ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    case "${{COMPREPLY[0]}}" in *=) compopt -o nospace ;; esac
}}
complete -o default -F _{NAME}_completion {NAME}"""


def _zsh(words: Mapping[str, list[str]], algorithms: list[str]) -> str:
    cases = "\n".join(f"        {verb}) options=({' '.join(map(_quoted, given))}) ;;" for verb, given in words.items())
    return f"""#compdef {NAME}
_{NAME}() {{
    local -a options
    local verb="" word
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$word" in -*) ;; *) verb="$word"; break ;; esac
    done
    case "${{words[CURRENT-1]}}" in
        --algorithm|-a) compadd -- {" ".join(algorithms)}; return ;;
        --model|-m|--data|-d|--eval-data|--output|-o) _files; return ;;
    esac
    case "$verb" in
        "") options=({" ".join(words)}) ;;
{cases}
    esac
    compadd -S '' -- ${{(M)options:#*=}}
    compadd -- ${{options:#*=}}
    _files
}}
_{NAME} "$@" """.rstrip()


def _fish(words: Mapping[str, list[str]], algorithms: list[str]) -> str:
    lines = [f"complete -c {NAME} -n __fish_use_subcommand -f -a {_quoted(' '.join(words))}"]
    for verb, given in words.items():
        where = f"complete -c {NAME} -n {_quoted(f'__fish_seen_subcommand_from {verb}')}"
        plain = [word for word in given if not word.startswith("--")]
        lines += [f"{where} -l {word[2:]}" for word in given if word.startswith("--") and word != "--algorithm"]
        if "--algorithm" in given:
            lines.append(f"{where} -l algorithm -s a -x -a {_quoted(' '.join(algorithms))}")
        if plain:
            lines.append(f"{where} -a {_quoted(' '.join(plain))}")
    return "\n".join(lines)


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


_SCRIPTS: Mapping[str, Callable[[Mapping[str, list[str]], list[str]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
