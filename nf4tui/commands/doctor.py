"""`nf4tui doctor`: one line a fact about this machine. Exit 0 when training on the CPU works, else 3."""

import json

from nf4tui.errors import CannotRunError


def run(*, as_json: bool = False) -> int:
    """Prints every check. Raises CannotRunError where one failed."""
    from nf4tui.doctor import FAIL, checks
    from nf4tui.sanitize import one_line

    failed = []
    for check in checks():
        text = one_line(check.text)
        if as_json:
            found = {"event": "doctor", "check": check.name, "level": check.level, "text": text}
            print(json.dumps(found), flush=True)
        else:
            print(f"{check.level:4}  {check.name:13}  {text}", flush=True)
        if check.level == FAIL:
            failed.append(check.name)
    if failed:
        raise CannotRunError(f"training cannot run here: {', '.join(failed)} failed")
    return 0
