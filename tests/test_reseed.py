"""结论不靠某个种子：所有种子一起换掉，每条结论 10 次里至少成立 9 次（平时换 3 次，3 次都要成立）。"""
import math

import pytest
from harness import numbered_scripts
from reseed import count_holds

USUAL_SHIFTS = 3


def check_claims(script, n_shifts):
    short = [(holds, text) for holds, text in count_holds(script, n_shifts) if holds < math.ceil(0.9 * n_shifts)]
    assert not short, f"{script} 换 {n_shifts} 次种子：" + "；".join(f"{holds} 次成立：{text}" for holds, text in short)


@pytest.mark.reseed
@pytest.mark.parametrize("script", numbered_scripts(torch=False))
def test_claims_hold_over_shifted_seeds(script, request):
    check_claims(script, request.config.getoption("--reseed") or USUAL_SHIFTS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("script", numbered_scripts(torch=True))
def test_claims_of_torch_scripts_hold_over_training_seeds(script):
    check_claims(script, USUAL_SHIFTS)
