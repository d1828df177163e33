"""Name the packages that scripts/gpu-check needs and this interpreter lacks in one line, and exit with 2 if any."""

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

MORE = ["pytest>=8", "hypothesis", "torchvision"]  # for the tests, and ResNet-50; a CPU trains a smaller network


def is_missing(requirement: str) -> bool:
    try:
        return not version(re.split("[<>=]", requirement)[0])
    except PackageNotFoundError:
        return True


if sys.version_info < (3, 11):  # noqa: UP036 - PYTHON may be any
    sys.exit(f"gpu-check: dbloader needs Python 3.11, got {sys.version.split()[0]}: set PYTHON to another interpreter")
import tomllib  # noqa: E402 - new in Python 3.11

project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
needed = [one for one in project["dependencies"] if ";" not in one]  # dbloader works without the others
needed += MORE[: 2 if "--cpu" in sys.argv else 3]
if missing := [f"'{requirement}'" for requirement in needed if is_missing(requirement)]:
    print(f"gpu-check: missing packages: {sys.executable} -m pip install {' '.join(missing)}", file=sys.stderr)
    sys.exit(2)
