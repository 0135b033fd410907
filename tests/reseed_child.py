"""
换种子再跑一次：python3 tests/reseed_child.py 脚本 偏移

在这个进程里把 random.Random 和 torch 的 manual_seed 换成"种子 + 偏移"，然后照常运行脚本。
脚本一行不改，所有种子却都变了：结论若只靠某个种子，这里就会露馅。偏移 0 与直接运行相同。
"""
import random
import runpy
import sys

STRIDE = 1_000_003  # 不同的偏移离得远，脚本里 s、s+1 这样相邻的种子不会撞上


def shift_seed(seed, shift):
    """整数种子加上偏移；字符串种子接上偏移；None（系统熵）原样返回。"""
    if shift == 0 or seed is None:
        return seed
    return seed + shift * STRIDE if isinstance(seed, int) else f"{seed}#{shift}"


def patch_random(shift):
    class ShiftedRandom(random.Random):
        def seed(self, a=None, version=2):
            super().seed(shift_seed(a, shift), version)

    random.Random = ShiftedRandom


def patch_torch(shift):
    """只在脚本要用 torch 时才导入它：标准库的脚本在没有 torch 的机器上也能换种子。"""
    import torch

    manual_seed, generator_seed = torch.manual_seed, torch.Generator.manual_seed

    class ShiftedGenerator(torch.Generator):
        def manual_seed(self, seed):
            return generator_seed(self, shift_seed(seed, shift))

    torch.manual_seed = lambda seed: manual_seed(shift_seed(seed, shift))
    torch.Generator = ShiftedGenerator


def main():
    script, shift = sys.argv[1], int(sys.argv[2])
    patch_random(shift)
    if "lecture11" in script or "lecture12" in script:
        patch_torch(shift)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
