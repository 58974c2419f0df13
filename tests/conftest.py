"""Tables wrap to the terminal's width; the tests read them at one width, whatever the machine's terminal is."""

import os

os.environ["COLUMNS"] = "200"
