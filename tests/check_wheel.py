"""Build the wheel, look inside, install it in a fresh environment and run the main job there.

``python tests/check_wheel.py [--fast]``: ``--fast`` stops after looking inside.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("costmodel", "constraints", "search", "studies")


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def look_inside(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    extra = {name for name in top if name != "shapefront" and not name.endswith(".dist-info")}
    if extra:
        raise SystemExit(f"the wheel must contain only shapefront, found {sorted(extra)}")
    wanted = [f"shapefront/{room}/__init__.py" for room in ROOMS]
    wanted += [
        "shapefront/py.typed",
        "shapefront/costmodel/data/hardware/gb300.toml",
        "shapefront/costmodel/data/profiles/ideal.toml",
        "shapefront/studies/library/moe-30b-a3b.toml",
    ]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise SystemExit(f"the wheel lacks {missing}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        # sdist first, wheel from the sdist: the links must survive both
        run(sys.executable, "-m", "build", "--outdir", str(place / "dist"), str(ROOT), cwd=place)
        (wheel,) = (place / "dist").glob("*.whl")
        look_inside(wheel)
        print(f"{wheel.name}: holds only shapefront, all rooms and data")
        if "--fast" in sys.argv:
            return
        venv.create(place / "env", with_pip=True)
        python = str(place / "env" / "bin" / "python")
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel), cwd=place)
        run(str(place / "env" / "bin" / "shapefront"), "run", "--out", str(place / "result"), cwd=place)
        for name in ("pareto.csv", "ranked.csv", "result.json", "configs/rank-01/config.json"):
            if not (place / "result" / name).stat().st_size:
                raise SystemExit(f"the default study wrote no {name}")
        print("installed in a fresh environment; the default study ran")


if __name__ == "__main__":
    main()
