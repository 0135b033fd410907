"""讲义不撒谎：记录的输出就是脚本现在的输出；正文里的小数有出处；练习真的会出现所说的结果。"""
import re

import course
import pytest
from harness import ROOT, TORCH_LECTURES, bullets, cell, clear_error, demo_section, run_edited, usual_output

NOTES = sorted((ROOT / "lectures").glob("lecture*.md"))
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
ROW = re.compile(r"^\| *`?([\w.]+\.py)`? *\| *`?(\w+)`? *\| *`?(.+?)`? *\| *\*\*(.+?)\*\*", re.M)
HEADER = "| 脚本 | 常数 | 新值 | 看什么 |"


def note_id(path):
    return path.stem


def script_path(note, name):
    """练习里的脚本名 → 相对路径：编号脚本在这一讲的文件夹里，工具箱也可以写。"""
    lecture = note.stem.split("_")[0]
    return f"{lecture}/{name}"


def exercises():
    return [
        pytest.param(
            note, *row, id=f"{note.stem.split('_')[0]}-{row[0]}-{row[1]}-{i}",
            marks=[pytest.mark.slow] if note.stem.startswith(TORCH_LECTURES) else [],  # torch 的脚本跑一次要几十秒
        )
        for note in NOTES
        for i, row in enumerate(ROW.findall(note.read_text(encoding="utf-8")))
    ]


@pytest.fixture(autouse=True)
def _use_recorded_outputs(monkeypatch):
    """course.refresh 需要脚本的输出时，用这次测试里已经跑过的那一份。"""
    monkeypatch.setattr(course, "script_output", usual_output)


@pytest.mark.parametrize("path", course.note_files(), ids=note_id)
def test_recorded_outputs_are_what_the_scripts_print(path):
    text = path.read_text(encoding="utf-8")
    assert course.same_record(path, text, course.refresh(text)), f"{path.name} 过期了：python3 course.py notes"


def test_readme_records_a_cold_run_of_every_script():
    """README 里"从头跑一遍"的表：每个脚本一行，√ 的条数与现在相同（秒数是当时量的，不核对）。"""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\d.]+ \| (lecture\d\d/\w+\.py) \| [\d.]+ \| (\d+) \|$", text, re.M)
    assert [path for path, _ in rows] == [script.path for script in course.find_scripts()]
    assert f"{len(rows)} 个脚本，{sum(int(claims) for _, claims in rows)} 条结论" in text
    for path, claims in rows:
        assert usual_output(path).count("\n  √ ") == int(claims), path


@pytest.mark.parametrize("path", NOTES, ids=note_id)
def test_every_demo_of_every_script_is_shown(path):
    """这一讲每个脚本的每个演示，都在讲义里有一个 cog 块。"""
    text = path.read_text(encoding="utf-8")
    for script in course.find_scripts():
        if note_id(path).startswith(script.path.split("/")[0]):
            for demo in re.findall(r"^演示 (\d+)：", usual_output(script.path), re.M):
                assert re.search(rf'recorded\("{script.path}", {demo}\b', text), f"缺 {script.path} 的演示 {demo}"


@pytest.mark.parametrize("path", NOTES, ids=note_id)
def test_decimals_in_the_text_have_a_source(path):
    """正文里两位以上的小数，要么在本讲义记录的输出里，要么那一段引了论文，要么写在公式或代码里。"""
    text = path.read_text(encoding="utf-8")
    records = " ".join(FENCE.findall(text))
    prose = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.S)
    prose = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`", "", prose, flags=re.S)
    for paragraph in re.split(r"\n\s*\n", prose):
        if re.search(r"et al\.|（\d{4}|20\d\d", paragraph) or HEADER in paragraph:
            continue
        for number in re.findall(r"(?<![\d.])\d+\.\d{2,}", paragraph):
            assert number in records, f"{path.name}：{number} 没有出处：{paragraph[:80]}"


@pytest.mark.parametrize("path", NOTES, ids=note_id)
def test_note_has_its_parts(path):
    """自己的文字 250～450 行（记录的输出不算）；有可测的练习、找 bug、想一想；本仓库没有的讲最多提一次。"""
    text = path.read_text(encoding="utf-8")
    own = re.sub(r"<!-- \[\[\[cog.*?\[\[\[end\]\]\] -->\n?", "", text, flags=re.S)
    assert 250 <= len(own.splitlines()) <= 450
    assert HEADER in text and "### 找 bug" in text and "### 想一想" in text
    table = text[text.index(HEADER):].split("\n\n")[0]
    assert len(ROW.findall(text)) == table.count("\n") - 1 >= 5, "练习表太短，或有读不懂的行"
    assert text.count("<details>") >= 3 and text.count("<details>") == text.count("</details>")
    others = re.findall(r"第 (?:3|5|7|8|9|10) 讲", text)
    assert len(others) <= 1, others


@pytest.mark.parametrize("path", NOTES, ids=note_id)
def test_scripts_cite_the_section_that_shows_them(path):
    """脚本的文档字符串说"第 k 节"，讲义的"## k …"里就有它的输出。"""
    text = path.read_text(encoding="utf-8")
    for script in course.find_scripts():
        if not note_id(path).startswith(script.path.split("/")[0]):
            continue
        doc = (ROOT / script.path).read_text(encoding="utf-8")
        sections = re.findall(r"\d+", re.search(r"第 ([\d、和 ]+) 节", doc)[1])
        bodies = [re.search(rf"^## {k}[ .、].*?(?=^## \d|\Z)", text, re.M | re.S) for k in sections]
        assert all(bodies), f"{script.path}：讲义里没有第 {sections} 节"
        assert any(f'recorded("{script.path}"' in body[0] for body in bodies), script.path


@pytest.mark.parametrize("note, script, name, new, claim", exercises())
def test_exercise_shows_what_it_says(note, script, name, new, claim, tmp_path):
    path = script_path(note, script)
    done = run_edited(path, name, new, tmp_path)
    check_outcome(claim, path, done)


def check_outcome(claim, path, done):
    """看什么：练习表里加粗的那一句。四种说法就是下面的四个分支。"""
    error = re.fullmatch(r"报错「(.+?)」", claim)
    if error:
        assert done.returncode != 0 and error[1] in (clear_error(done) or ""), done.stderr.decode()[-500:]
        return
    assert done.returncode == 0, done.stderr.decode()[-500:]
    after = done.stdout.decode("utf-8")
    if claim == "全部观察仍为 √":
        assert "√" in after and "× 这一次没有出现" not in after
        return
    turned = re.fullmatch(r"观察 (\d+)\.(\d+) 变 ×", claim)
    if turned:
        demo, j = int(turned[1]), int(turned[2]) - 1
        assert bullets(demo_section(usual_output(path), demo))[j] == "√"
        assert bullets(demo_section(after, demo))[j] == "×", demo_section(after, demo)
        return
    moved = re.fullmatch(r"演示 (\d+) 行「(.+?)」列「(.+?)」(变大|变小|不变)", claim)
    assert moved, f"读不懂的说法：{claim}"
    demo, row, column = int(moved[1]), moved[2], moved[3]
    old, new = (cell(demo_section(text, demo), row, column) for text in (usual_output(path), after))
    assert {"变大": new > old, "变小": new < old, "不变": new == old}[moved[4]], f"{old} → {new}"
