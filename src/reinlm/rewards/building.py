"""Build a set of rewards: find, import and check what a specification names, and say where each runs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from reinlm.config import build
from reinlm.errors import InputError
from reinlm.rewards.attempts import Policy
from reinlm.rewards.builtin import Builtin
from reinlm.rewards.calls import SERVICE, Reward, about, load_into
from reinlm.rewards.copies import NoCopyError
from reinlm.rewards.functions import copy_of, load, ready, runs_here
from reinlm.rewards.scoring import CallMode, RewardSet, close_pools
from reinlm.rewards.signature import Parameters
from reinlm.rewards.spec import Choice, RewardConfig, RewardSpec, read_spec
from reinlm.sandbox.pool import WorkerPool
from reinlm.sandbox.worker import IN_WORKER, WorkerError

_keys = itertools.count()
"""The numbers of rewards in worker processes, which may serve one set of rewards after another."""


def build_rewards(
    spec: RewardSpec | RewardConfig,
    *,
    time_limit: float | None = 60.0,
    workers: int = 2,
    on_error: Literal["stop", "skip"] = "stop",
    call: CallMode = "group",
    retries: int = 3,
    retry_delay: float = 1.0,
    one_by_one: bool | None = None,
    concurrency: int = 16,
) -> RewardSet:
    """Find, import and check the rewards that `spec` names.

    Functions run in worker processes that are killed when they overrun `time_limit` (seconds a call): imported there, or
    copied where they are lambdas, closures or functions of the main program or a notebook. Objects and functions that
    change variables of the program or hold a model run in this process. `call` says what one call of a function scores: the
    answers to one prompt, or those of a whole step. The other arguments are those of `RewardConfig`, which brings them
    itself.

    Raises:
        InputError: an unknown name, an option that does not exist, a file or function that cannot be imported.
    """
    if isinstance(spec, RewardConfig):
        config = spec
    else:
        read_spec(spec)  # its messages say more than those that come through the configuration
        given = {
            "functions": spec,
            "time_limit": time_limit,
            "workers": workers,
            "on_reward_error": on_error,
            "call": call,
        }
        given |= {"retries": retries, "retry_delay": retry_delay, "concurrency": concurrency}
        config = build(RewardConfig, given if one_by_one is None else {**given, "one_by_one": one_by_one})
    rewards, pools = open_choices(
        read_spec(config.functions),
        time_limit=config.time_limit,
        workers=config.workers,
        concurrency=config.concurrency,
    )
    policy = Policy(config.on_reward_error == "stop", config.retries, config.retry_delay, config.one_by_one)
    return RewardSet(rewards, pools, time_limit=config.time_limit, policy=policy, call=config.call)


def open_choices(
    choices: Sequence[Choice], *, time_limit: float | None, workers: int, concurrency: int
) -> tuple[list[Reward], list[WorkerPool]]:
    """Rewards or judges that are ready to be called, and the pools of their processes.

    Raises InputError for one that cannot be had or called, and in a process that imports one.
    """
    if os.environ.get(IN_WORKER):
        raise InputError(
            "rewards are built while a reward function is being imported",
            hint='the file that holds the function also starts a run: guard that with `if __name__ == "__main__":`',
        )
    checks, here = WorkerPool(SERVICE, workers, keep=True), WorkerPool(SERVICE)
    pools = [checks, here]
    try:
        rewards = []
        for choice in choices:
            own = WorkerPool(SERVICE)
            pools.append(own)
            rewards.append(_ready(next(_keys), choice, time_limit, concurrency, checks, here, own))
    except BaseException:
        close_pools(pools)
        raise
    return rewards, pools


def _ready(
    key: int,
    choice: Choice,
    limit: float | None,
    concurrency: int,
    checks: WorkerPool,
    here: WorkerPool,
    own: WorkerPool,
) -> Reward:
    """Load the function where it will run, so that one that cannot be used is found before any training.

    The pool is `checks` for a built-in that can hang, `own` for a function that a worker can import or copy, else `here`.
    """
    source, stays = choice.source, None
    if isinstance(choice.function, Builtin):
        in_worker = limit is not None and choice.function.killable and source is not None
        return Reward(key, choice, choice.function, None, checks if in_worker else None, in_worker)
    try:
        if choice.function is not None:
            ready(choice.function, judges=choice.judges)
        if source is None and limit is not None and choice.function is not None:
            try:
                source = copy_of(choice.function)
            except NoCopyError as error:
                stays = str(error)
        if source is not None and limit is not None and not runs_here(source):
            sent = replace(choice, source=source)
            try:
                found: Parameters = own.submit(
                    partial(load_into, key=key, choice=sent, concurrency=concurrency)
                ).result()
                return Reward(key, sent, None, found, own, True, concurrency)
            except NoCopyError as error:
                stays = str(error)
            except (WorkerError, InputError) as error:
                if choice.function is None:
                    if isinstance(error, WorkerError):
                        raise about(choice, InputError(error.text, hint=error.hint)) from None
                    raise
                stays = error.text if isinstance(error, WorkerError) else error.message
        function = choice.function
        if function is None:
            assert source is not None
            function = load(replace(source, judges=choice.judges))
        here_function = ready(function, concurrency, judges=choice.judges)
        pool = None if limit is None else here
        return Reward(key, choice, here_function, here_function.parameters, pool, False, concurrency, stays)
    except InputError as error:
        named = error.message.startswith(f"{choice.noun} {choice.name!r}: ")
        raise error if named else about(choice, error) from error
