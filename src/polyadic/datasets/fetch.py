"""Sources of the datasets, and `fetch`, which downloads what their readers need into a root folder.

The addresses are those on the pages of the authors and of later projects. An archive that was put into the root by hand
is unpacked and stays.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Sequence
from pathlib import Path

from polyadic.datasets.download import Members, RemoteFile, get, is_there
from polyadic.files import lock
from polyadic.structures.vocabulary import PolyadicError, PolyadicWarning


def _visual_genome_images(name: str, size: int, sha256: str) -> RemoteFile:
    """Describe one of the two archives for `images/`; together they hold every image of VG150 and VG200."""
    return RemoteFile(
        name,
        (
            f"https://cs.stanford.edu/people/rak248/VG_100K_2/{name}",
            f"https://huggingface.co/datasets/BoyangZ/VisualGenome_VG_100K_1_and_2/resolve/main/{name}",
            f"https://thunlp.oss-cn-qingdao.aliyuncs.com/{name}",
        ),
        size,
        sha256,
        (Members(("VG_100K/*.jpg", "VG_100K_2/*.jpg"), "images", 108_073),),
        by_hand="https://homes.cs.washington.edu/~ranjay/visualgenome/api.html",
    )


_IMAGES = (  # sizes and digests: the download checksums of Hugging Face's `visual_genome`
    _visual_genome_images(
        "images.zip", 9_731_705_982, "51c682d2721f880150720bb416e0346a4c787e4c55d7f80dfd1bd3f73ba81646"
    ),
    _visual_genome_images(
        "images2.zip", 5_471_658_058, "99da1a0ddf87011319ff3b05cf9176ffee2731cc3c52951162d9ef0d68e3cfb5"
    ),
)


def _scene_graphs(path: str, name: str, *more: str) -> RemoteFile:
    """Describe a file of the VG150 authors, at the two addresses that their laboratory has had."""
    return RemoteFile(
        name,
        (
            f"https://svl.stanford.edu/projects/scene-graph/{path}/{name}",
            f"http://svl.stanford.edu/projects/scene-graph/{path}/{name}",
            f"http://cvgl.stanford.edu/scene-graph/{path}/{name}",
            *more,
        ),
        by_hand="https://github.com/danfeiX/scene-graph-TF-release/blob/master/data_tools/README.md",
    )


FILES: dict[str, tuple[RemoteFile, ...]] = {
    "vrd": (
        RemoteFile(
            "json_dataset.zip",
            (
                "https://cs.stanford.edu/people/ranjaykrishna/vrd/json_dataset.zip",
                "http://data.lip6.fr/cadene/block/vrd/annotations.tar.gz",
            ),
            unpack=tuple(
                Members((name,), ".")
                for name in ("annotations_train.json", "annotations_test.json", "objects.json", "predicates.json")
            ),
            by_hand="https://cs.stanford.edu/people/ranjaykrishna/vrd/",
        ),
        RemoteFile(
            "sg_dataset.zip",
            (
                "http://data.lip6.fr/cadene/block/vrd/images.tar.gz",
                "http://imagenet.stanford.edu/internal/jcjohns/scene_graphs/sg_dataset.zip",
            ),
            unpack=(
                Members(("sg_train_images/*", "train/*"), "sg_dataset/sg_train_images", 4_000),
                Members(("sg_test_images/*", "test/*"), "sg_dataset/sg_test_images", 1_000),
            ),
            by_hand="https://drive.google.com/file/d/0Byvt-AfX75o1SVBTWFlPRGZGTXc/view?resourcekey=0-V3fW-908CLk30sxFVE9B-w",
        ),
    ),
    "vg150": (
        _scene_graphs("dataset", "VG-SGG-dicts.json"),
        _scene_graphs("VG", "image_data.json", "https://thunlp.oss-cn-qingdao.aliyuncs.com/vg/image_data.json"),
        _scene_graphs("dataset", "VG-SGG.h5"),
        *_IMAGES,
    ),
    "vg200": (
        RemoteFile(
            "vg1_2_meta.h5",
            ("https://www.dropbox.com/s/ujd4247m2tduuj2/vg1_2_meta.h5?dl=1",),
            by_hand="https://drive.google.com/open?id=1C6MDiqWQupMrPOgk4T12zWiAJAZmY1aa",
        ),
        *_IMAGES,
    ),
}


def fetch(
    name: str,
    root: str | Path,
    *,
    files: Sequence[RemoteFile] | None = None,
    timeout: float = 30.0,
    retries: int = 3,
    unpacked: float | None = None,
) -> list[Path]:
    """Download the files of a dataset (vrd, vg150 or vg200) to `root`. What exists already is left as it is.

    Args:
        name: a key of `FILES`.
        root: the folder, created if missing; locked against a second fetch.
        files: sources instead of `FILES[name]`, e.g. a local mirror.
        timeout: seconds without a byte that count as a stall.
        retries: further attempts at a mirror that answered and failed, before the next one.
        unpacked: gigabytes that an archive may unpack to; None: 256 MB, and four times its size.

    Returns:
        The files and folders that are new; none if everything existed.
    """
    if files is None and name not in FILES:
        raise PolyadicError(f"fetch: no dataset is called {name!r}; known: {', '.join(FILES)}")
    if not (timeout > 0 and retries >= 0):
        raise PolyadicError(f"fetch: timeout must be positive and retries not negative, got {timeout} and {retries}")
    if unpacked is not None and not unpacked > 0:
        raise PolyadicError(f"fetch: unpacked must be gigabytes above 0, got {unpacked}")
    root, title = Path(root).expanduser(), name.upper()
    files = FILES[name] if files is None else files
    new: list[Path] = []
    failed: list[str] = []
    try:
        missing = [file for file in files if not is_there(file, root, title)]
        if missing:
            root.mkdir(parents=True, exist_ok=True)
            busy = f"{title}: another fetch is filling {root}; wait for it, or stop it"
            with lock(root / ".fetch.lock", busy):
                for file in missing:
                    why = get(file, root, title, timeout=timeout, retries=retries, unpacked=unpacked)
                    if why is None:
                        new += [root / place for place in [group.place for group in file.unpack] or [file.path]]
                    else:
                        page = f"download it by hand, e.g. from {file.by_hand or file.urls[0]}, to {root / file.path}"
                        failed.append(f"{file.path} could not be fetched ({why}): {page}")
    except OSError as error:
        cure = "choose another --root"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "free some space and run the command again, which resumes"
        where = error.filename or root
        raise PolyadicError(f"{title}: cannot write to {where}: {error.strerror or error}; {cure}") from error
    if failed:
        raise PolyadicError(" ".join(f"{title}: {'; '.join(failed)}; then run the command again".split()))
    for group in dict.fromkeys(group for file in files for group in file.unpack):
        have = group.have(root)
        if have < group.count:
            text = f"{title}: {root / group.place} has {have:,} files, the dataset has {group.count:,}"
            warnings.warn(text, PolyadicWarning, stacklevel=2)
    return new
