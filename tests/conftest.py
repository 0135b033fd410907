"""pytest 的选项：--reseed N 只数结论；--slow 加上很慢的测试。课程各讲的工具箱在这里放进 sys.path。"""
import os
import sys
import tempfile

import pytest
from harness import OUTPUTS, ROOT

sys.path[:0] = [str(ROOT), str(ROOT / "lectures")]
for folder in ("lecture01", "lecture02", "lecture04", "lecture06", "lecture11", "lecture12"):
    sys.path.insert(0, str(ROOT / folder))


def positive(text):
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise pytest.UsageError(f"--reseed 后面写一个正整数，收到的是 {text}")
    return int(text)


def pytest_configure(config):
    """主进程备一个文件夹放脚本的输出：xdist 的各个工作进程从环境变量里认出它，测试结束就删掉。"""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="course-tests-")
        os.environ[OUTPUTS] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_addoption(parser):
    parser.addoption("--reseed", type=positive, default=0, metavar="N", help="只数结论：每个标准库脚本换 N 次种子")
    parser.addoption("--slow", action="store_true", help="平时的测试，再加上标了 slow 的")


def pytest_collection_modifyitems(config, items):
    reseed, slow = config.getoption("--reseed"), config.getoption("--slow")
    keep = [
        item for item in items
        if (item.get_closest_marker("reseed") or not reseed) and (slow or not item.get_closest_marker("slow"))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in keep])
    # 先把每个脚本照常运行一遍：两个进程各跑各的；以后谁要用它的输出，都不必等另一个进程跑完
    items[:] = sorted(keep, key=lambda item: "usual_run" not in item.keywords)
