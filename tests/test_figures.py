"""讲义里的图没有过期，每一讲至少两张；字还是字，深色模式下也读得清，轴上写着是什么。"""
import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest
from harness import ROOT

draw_figures = pytest.importorskip("draw_figures")
NOTES = sorted((ROOT / "lectures").glob("lecture*.md"))
PINNED = re.search(r"^matplotlib==(\S+)", (ROOT / "requirements-dev.txt").read_text(encoding="utf-8"), re.M)[1]
IMAGE = re.compile(r"^!\[(.+)\]\(figures/(\w+)\.svg\)$", re.M)


def luminance(color):
    """WCAG 的相对亮度：sRGB 的三个分量先变回线性的。"""
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.skipif(matplotlib.__version__ != PINNED, reason=f"图由 matplotlib {PINNED} 画成，别的版本字节不同")
@pytest.mark.parametrize("name", draw_figures.FIGURES)
def test_figure_is_what_the_script_draws_now(name):
    path = draw_figures.path_of(name)
    assert draw_figures.same_figure(path, path.read_text(encoding="utf-8"), draw_figures.draw(name)), (
        f"{path.name} 过期了：python3 course.py notes"
    )


@pytest.mark.skipif(matplotlib.__version__ != PINNED, reason=f"图由 matplotlib {PINNED} 画成，别的版本字节不同")
def test_same_bytes_twice_and_a_moved_curve_is_seen(monkeypatch):
    name = "lecture01_temperature"
    first = draw_figures.draw(name)
    assert draw_figures.draw(name) == first
    monkeypatch.setattr(draw_figures.script("lecture01/03_temperature.py"), "SIZE", 4e9)
    assert not draw_figures.same_figure(draw_figures.path_of(name), first, draw_figures.draw(name))


def test_torch_figures_forgive_a_small_drift_only():
    path = draw_figures.path_of("lecture12_reward_kl")
    old = path.read_text(encoding="utf-8")
    number = re.search(r"L (\d+\.\d+)", old)[1]
    near, far = (old.replace(f"L {number}", f"L {float(number) + shift:.2f}") for shift in (1, 60))
    assert draw_figures.same_figure(path, old, near)
    assert not draw_figures.same_figure(path, old, far)
    assert not draw_figures.same_figure(path, old, old.replace("真值", "真"))


@pytest.mark.parametrize("note", NOTES, ids=lambda path: path.stem)
def test_note_shows_its_figures(note):
    """至少两张；每张都在 FIGURES 里，是这一讲的，有一句话的说明；FIGURES 里这一讲的都用上了。"""
    lecture = note.stem.split("_")[0]
    shown = IMAGE.findall(note.read_text(encoding="utf-8"))
    names = [name for _, name in shown]
    assert len(names) >= 2 and sorted(names) == sorted(n for n in draw_figures.FIGURES if n.startswith(lecture))
    assert all(len(text) >= 10 for text, _ in shown)


def test_no_orphans():
    assert {path.stem for path in draw_figures.FOLDER.glob("*")} == set(draw_figures.FIGURES)


@pytest.mark.parametrize("name", draw_figures.FIGURES)
def test_text_stays_text_on_an_opaque_ground(name):
    svg = draw_figures.path_of(name).read_text(encoding="utf-8")
    root = ElementTree.fromstring(svg)
    texts = [node for node in root.iter("{http://www.w3.org/2000/svg}text")]
    words = "".join("".join(node.itertext()) for node in texts)
    assert re.search("[\u4e00-\u9fff]", words), "中文成了轮廓"
    assert "sans-serif" in svg and "Date" not in svg and "<metadata" not in svg
    ground = re.search(r'<g id="patch_1">\s*<path [^>]*style="fill: (#\w{6})"', svg)[1]
    assert luminance(ground) == 1, "底色应当是不透明的白，深色的页面上才读得清"
    colors = set(re.findall(r"fill: (#\w{6})", "".join(ElementTree.tostring(node, "unicode") for node in texts)))
    assert colors and all(1.05 / (luminance(color) + 0.05) >= 4.5 for color in colors), colors
