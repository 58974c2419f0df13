"""Draw the gallery's pictures: ``python docs/make_gallery.py`` in the project's folder."""

from pathlib import Path
from tempfile import TemporaryDirectory

from shapefront import Study
from shapefront.studies.plot import KINDS, make_plot, subject_of

FOLDER = Path(__file__).parent / "gallery"


def main(folder: Path = FOLDER) -> None:
    """Run the default study and draw every kind of picture."""
    with TemporaryDirectory() as place:
        Study.load("moe-30b-a3b").run(trials=100, seed=0, out=place, progress="quiet")
        subject = subject_of(place)
        for kind in KINDS:
            make_plot(subject, kind).save(folder / f"{kind}.png", dpi=80)


if __name__ == "__main__":
    main()
