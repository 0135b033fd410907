import sys

from harness import ROOT

for folder in ("lecture01", "lecture02", "lecture04", "lecture06", "lecture11", "lecture12"):
    sys.path.insert(0, str(ROOT / folder))
