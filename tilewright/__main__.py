"""``python -m tilewright`` is the command ``tilewright``."""

from tilewright.cli import main

raise SystemExit(main())
