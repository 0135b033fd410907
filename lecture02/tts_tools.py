"""
================================================================================
第 2 讲 · 工具箱：测试时扩展（test-time scaling）—— 投票、验证器、搜索、记账
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 1 节

第 2、4 讲的脚本只从这里导入；toy world 的零件从 lecture01/toy_llm.py 转手出去。
运行时间：只是工具箱，不单独运行，只用标准库。
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture01"))
from toy_llm import (
    CARELESS_OFFSETS, OP_SIGNS, PROCEDURES, REF_SIZE, WIDTH, Problem, Sample, Step, ToyLLM, apply_bug, apply_op, bar,
    check_choice, check_int, check_number, display_width, extend_trace, fmt_size, make_problem, make_problem_set, mean,
    observe, pad, pass_at_k, path_probs, print_table, run_script, sample_index, softmax, step_hardness, title,
)

__all__ = [
    # 从 toy_llm 转手出去的
    "CARELESS_OFFSETS", "OP_SIGNS", "PROCEDURES", "REF_SIZE", "WIDTH", "Problem", "Sample", "Step", "ToyLLM",
    "apply_bug", "apply_op", "bar", "check_choice", "check_int", "check_number", "display_width", "extend_trace",
    "fmt_size", "make_problem", "make_problem_set", "mean", "observe", "pad", "pass_at_k", "path_probs", "print_table",
    "run_script", "sample_index", "softmax", "step_hardness", "title",
]
