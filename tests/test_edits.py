"""
改常数是安全的：任何数字常数减半、加倍、改成 0、1、-1，要么正常跑完（表里没有 nan、inf），
要么以一句中文的 ValueError 结束；不会有来自内部的错误，也不会慢到 10 倍以上。
改成另一种东西（None、一串字、空的元组……）也一样。

平时各抽 40 个；--slow 时全部做一遍。
"""
import ast
import random
import re
import subprocess

import pytest
from harness import clear_error, constants, numbered_scripts, run_edited

SAMPLE, SAMPLE_SEED = 40, 0
PER_RUN_SECONDS = 60  # 标准库脚本平时在 5 秒内；10 倍以上算挂起


def is_number(node):
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def variants(node):
    """一个常数的新值（源码文字）：数字有五种改法；数字的元组逐个元素减半或加倍。"""
    if is_number(node):
        x = node.value
        half = x // 2 if isinstance(x, int) and x % 2 == 0 else x / 2
        return [repr(v) for v in dict.fromkeys([half, x * 2, 0, 1, -1])]
    if isinstance(node, ast.UnaryOp) and is_number(node.operand):
        x = ast.literal_eval(node)
        return [repr(v) for v in dict.fromkeys([x / 2, x * 2, 0, 1, -1])]
    if isinstance(node, ast.Tuple) and node.elts and all(map(is_number, node.elts)):
        xs = [n.value for n in node.elts]
        halves = tuple(x // 2 if isinstance(x, int) and x % 2 == 0 else x / 2 for x in xs)
        return [repr(halves), repr(tuple(x * 2 for x in xs))]
    return []


def odd_variants(node):
    """一个常数的新值（源码文字）：数字、数字的元组换成另一种东西，或者空的。"""
    if is_number(node):
        return ["None", "'abc'", "()"]
    if isinstance(node, ast.Tuple) and node.elts and all(map(is_number, node.elts)):
        return ["None", "7", "()", "(None,)", "('abc',)"]
    return []


def all_edits(torch, ways=variants):
    return [
        (script, name, new)
        for script in numbered_scripts(torch)
        for name, node in constants(script).items()
        for new in ways(node)
    ]


def check_edit(script, name, new, folder, seconds):
    try:
        done = run_edited(script, name, new, folder, timeout=seconds)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{script}：{name} = {new} 跑了 {seconds} 秒还没结束")
    if done.returncode == 0:
        assert not re.search(rb"\b(nan|inf)\b", done.stdout), f"{script}：{name} = {new} 的表里有 nan 或 inf"
    else:
        assert clear_error(done), f"{script}：{name} = {new}\n{done.stderr.decode()[-800:]}"


def sampled_edits():
    rng = random.Random(SAMPLE_SEED)
    return [edit for ways in (variants, odd_variants) for edit in rng.sample(all_edits(False, ways), SAMPLE)]


@pytest.mark.parametrize("script, name, new", sampled_edits())
def test_sampled_edits_end_well(script, name, new, tmp_path):
    check_edit(script, name, new, tmp_path, PER_RUN_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("script, name, new", all_edits(torch=False))
def test_every_edit_ends_well(script, name, new, tmp_path):
    check_edit(script, name, new, tmp_path, PER_RUN_SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("script, name, new", all_edits(False, odd_variants) + all_edits(True, odd_variants))
def test_every_odd_edit_ends_well(script, name, new, tmp_path):
    check_edit(script, name, new, tmp_path, seconds=1200)


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("script, name, new", all_edits(torch=True))
def test_every_torch_edit_ends_well(script, name, new, tmp_path):
    check_edit(script, name, new, tmp_path, seconds=1200)
