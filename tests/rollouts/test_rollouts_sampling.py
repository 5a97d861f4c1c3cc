"""The distribution that is sampled from, and the noise."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from reinlm.rollouts import sampling as module
from reinlm.rollouts.protocol import Request, Sampling
from reinlm.rollouts.sampling import RowSampling, log_distribution, noise_key, sample, uniform

CPU = torch.device("cpu")


def rows(*settings: Sampling) -> RowSampling:
    return RowSampling.of([Request(str(i), (1,), setting) for i, setting in enumerate(settings)], CPU)


def setting(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Sampling:
    return Sampling(max_new_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k)


def splitmix64(state: int) -> int:
    """The published generator in unbounded integers."""
    mask = (1 << 64) - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_noise_is_splitmix64_of_a_counter() -> None:
    assert splitmix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # first output for seed 0, as published
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    positions = [0, 1, 5, 31, 1000, 70000]
    expected = [
        (splitmix64(key + (position + 1) * 0x9E3779B97F4A7C15) >> 11) * 2.0**-53
        for key, position in zip(keys, positions, strict=True)
    ]
    assert uniform(torch.tensor(keys), torch.tensor(positions)).tolist() == expected


def test_noise_key_is_the_same_everywhere_and_tells_seeds_and_ids_apart() -> None:
    assert noise_key(0, "train/1/a/0") == noise_key(0, "train/1/a/0") == KEY_OF_TRAIN_1_A_0
    assert len({noise_key(seed, name) for seed in (0, 1, 11) for name in ("1", "11", "1/0", "a")}) == 12


KEY_OF_TRAIN_1_A_0 = int.from_bytes(
    bytes.fromhex("53c6ab6162e4b33b"), "little", signed=True
)  # printf '0\0train/1/a/0' | b2sum -l 64


def test_noise_has_24_bits_where_there_is_no_float64() -> None:
    wide = uniform(torch.arange(1000), torch.zeros(1000, dtype=torch.long))
    narrow = uniform(torch.arange(1000), torch.zeros(1000, dtype=torch.long), dtype=torch.float32)
    assert narrow.dtype == torch.float32
    assert torch.equal(narrow.double(), (wide * 2**24).floor() / 2**24)


def chi_square(counts: list[int], probabilities: list[float]) -> float:
    total = sum(counts)
    return sum((n - total * p) ** 2 / (total * p) for n, p in zip(counts, probabilities, strict=True))


@pytest.mark.parametrize("along", ["rows", "positions"])
def test_sampled_frequencies_match_the_distribution(along: str) -> None:
    count, probabilities = 40_000, [0.4, 0.3, 0.15, 0.1, 0.04, 0.01]
    logits = torch.tensor(probabilities).log().expand(count, -1)
    asked = [Request(str(i if along == "rows" else 0), (1,), setting()) for i in range(count)]
    positions = torch.arange(count) if along == "positions" else torch.zeros(count, dtype=torch.long)
    tokens, logprobs = sample(logits, RowSampling.of(asked, CPU), positions)
    assert chi_square(tokens.bincount(minlength=6).tolist(), probabilities) < 20.5  # 99.9 % point, 5 degrees of freedom
    assert torch.allclose(logprobs, torch.tensor(probabilities).log()[tokens], atol=1e-6)


def test_truncated_frequencies_match_the_renormalised_distribution() -> None:
    probabilities = [0.4, 0.3, 0.15, 0.1, 0.04, 0.01]
    count = 20_000
    asked = [Request(str(i), (1,), setting(top_p=0.8)) for i in range(count)]
    logits = torch.tensor(probabilities).log().expand(count, -1)
    tokens, _ = sample(logits, RowSampling.of(asked, CPU), torch.zeros(count, dtype=torch.long))
    counts = tokens.bincount(minlength=6).tolist()
    assert counts[3:] == [0, 0, 0]
    assert chi_square(counts[:3], [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85]) < 13.8  # 99.9 % point, 2 degrees of freedom


def test_nucleus_includes_the_token_that_crosses_p() -> None:
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    kept = log_distribution(logits, rows(setting(top_p=0.6))).exp()
    assert torch.allclose(kept, torch.tensor([[0.0, 2 / 3, 0.0, 1 / 3]]))
    alone = log_distribution(logits, rows(setting(top_p=0.01))).exp()
    assert alone.tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_top_k_beyond_the_vocabulary_keeps_everything() -> None:
    logits = torch.tensor([[0.1, 0.5, 0.4]]).log()
    assert torch.allclose(log_distribution(logits, rows(setting(top_k=99))), logits)


def test_nucleus_of_one_keeps_the_smallest_probability() -> None:
    """A float sum of the mass may pass 1 before the last token; p=1 beside another row's top-k must not cut it."""
    logits = torch.randn(2, 5000) * 4
    kept = log_distribution(logits, rows(setting(top_p=1.0), setting(top_k=3)))
    assert kept[0].isfinite().all()
    assert kept[1].isfinite().sum() == 3


def test_mixed_rows_agree_with_the_warpers_of_transformers() -> None:
    torch.manual_seed(0)
    cases = [(1.0, 1.0, 0), (0.7, 0.9, 0), (1.3, 1.0, 5), (0.5, 0.8, 7), (2.0, 0.3, 50), (1.0, 0.95, 1)]
    logits = torch.randn(len(cases), 60) * 3
    ours = log_distribution(logits, rows(*(setting(*case) for case in cases)))
    for row, (temperature, top_p, top_k) in enumerate(cases):
        theirs = (
            TemperatureLogitsWarper(temperature)(None, logits[row : row + 1]) if temperature != 1 else logits[[row]]
        )
        theirs = TopKLogitsWarper(top_k)(None, theirs) if top_k else theirs
        theirs = TopPLogitsWarper(top_p)(None, theirs) if top_p < 1 else theirs
        theirs = theirs.log_softmax(-1)[0]
        assert torch.equal(ours[row].isfinite(), theirs.isfinite())
        finite = theirs.isfinite()
        assert torch.allclose(ours[row][finite], theirs[finite], atol=1e-5)


def test_a_row_without_truncation_is_untouched_by_its_neighbours() -> None:
    logits = torch.randn(2, 50)
    alone = log_distribution(logits[:1], rows(setting(0.7)))
    beside = log_distribution(logits, rows(setting(0.7), setting(0.7, top_p=0.5)))
    assert torch.equal(alone[0], beside[0])


def test_greedy_reports_the_untruncated_logprob_at_temperature_one() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    settings = rows(setting(0.0, top_p=0.1, top_k=1), setting(0.5))
    tokens, logprobs = sample(logits, settings, torch.zeros(2, dtype=torch.long))
    assert tokens[0] == 1
    assert logprobs[0].item() == pytest.approx(3 - math.log(math.e + math.e**3 + math.e**2), abs=1e-6)
    alone, _ = sample(logits[:1], rows(setting(0.0)), torch.zeros(1, dtype=torch.long))
    assert alone.tolist() == [1]


@pytest.mark.parametrize("noise", [0.0, 1 - 2.0**-53])
def test_a_token_of_zero_probability_is_never_chosen(noise: float) -> None:
    probabilities = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]]).log()
    expected = 1 if noise == 0 else 3
    assert module._inverse_cdf(probabilities, torch.tensor([noise], dtype=torch.float64)).tolist() == [expected]


def test_noise_that_rounds_up_to_the_total_takes_the_last_possible_token() -> None:
    probabilities = torch.tensor([[0.5, 0.5, 0.0]]).log()
    assert module._inverse_cdf(probabilities, torch.tensor([1.0], dtype=torch.float64)).tolist() == [1]


@pytest.mark.parametrize("tokens", [1024, 1000, 513])
def test_a_large_vocabulary_is_searched_to_the_same_token(tokens: int) -> None:
    """Against the plain inverse in float64: the cumulative sums left and right of the token enclose the noise."""
    torch.manual_seed(tokens)
    logprobs = (3 * torch.randn(400, tokens)).log_softmax(-1)
    logprobs[:, 100:700] = -math.inf  # whole blocks without mass, and parts of others
    noise = torch.rand(400, dtype=torch.float64)
    noise[:2] = torch.tensor([0.0, 1 - 2.0**-53])
    found = module._inverse_cdf(logprobs, noise)
    sums = logprobs.double().exp().cumsum(-1) / logprobs.double().exp().sum(-1, keepdim=True)
    assert ((found < 100) | (found >= 700)).all()
    assert (sums.gather(-1, found[:, None])[:, 0] >= noise - 1e-6).all()
    assert (sums.gather(-1, (found - 1).clamp(min=0)[:, None])[:, 0] <= noise + 1e-6).logical_or(found == 0).all()
    plain = torch.searchsorted(sums, noise[:, None], right=True)[:, 0]
    assert (found[1:] == plain[1:]).float().mean() > 0.99  # the first has noise 0


def test_working_in_chunks_changes_nothing() -> None:
    torch.manual_seed(0)
    logits, positions = torch.randn(7, 10), torch.arange(7)
    settings = rows(*(setting(0.5 * i, top_p=0.9 if i % 2 else 1.0, top_k=i) for i in range(7)))
    whole = sample(logits, settings, positions)
    chunked = sample(logits, settings, positions, chunk=20)
    assert torch.equal(whole[0], chunked[0])
    assert torch.equal(whole[1], chunked[1])


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1e-30}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_strings": ("a", "")}, "stop string"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, object], culprit: str) -> None:
    with pytest.raises(ValueError, match=culprit):
        Sampling(**{"max_new_tokens": 4, **changes})  # type: ignore[arg-type]
