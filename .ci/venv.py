"""Make `.venv` fit `requirements-dev.lock`: at once if it does already, else anew. Needs nothing but Python.

python3 .ci/venv.py
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV, LOCK = ROOT / ".venv", ROOT / "requirements-dev.lock"


def fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in (LOCK, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest() + f" {ROOT}\n"  # a virtual environment cannot be moved


def main() -> None:
    if sys.version_info < (3, 10):
        sys.exit(f"polyadic needs Python 3.10 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")
    if not LOCK.exists():
        sys.exit(f"{LOCK.name} is missing; restore it with: git checkout {LOCK.name}")
    stamp, ours = VENV / ".fits", VENV / ".made-by-make"
    if stamp.exists() and stamp.read_text() == fingerprint():
        return
    if VENV.exists() and not ours.exists():
        sys.exit(f"{VENV} was not made by make, and would be replaced: move it away, or remove it, and run make again")
    print(f"installing into {VENV.name} (torch is large: a few minutes the first time) ...", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        VENV.mkdir()
        ours.touch()
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [
            VENV / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        subprocess.run([*pip, "-r", LOCK], check=True)
        subprocess.run([*pip, "-e", ROOT], check=True)
    except KeyboardInterrupt:
        sys.exit("interrupted; run make again to start the installation anew")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(str(x) for x in error.cmd)} failed; see above, then run make again")
    half = stamp.with_suffix(".part")
    half.write_text(fingerprint())
    os.replace(half, stamp)


if __name__ == "__main__":
    main()
