"""``prism doctor``."""

from __future__ import annotations

from dataclasses import asdict

from prism_transformer.cli.output import Device, Json, print_json


def doctor(*, device: Device = "auto", as_json: Json = False) -> int:
    """Say in a few minutes whether everything is right on this machine, and what to do if not."""
    from prism_transformer.bench.doctor import checks, diagnose, doctor_settings
    from prism_transformer.terminal import make_console, say

    settings = doctor_settings(device)
    console = make_console()
    found = []
    for name, check in checks(settings).items():
        if not as_json:
            with console.status(f"checking {name}"):
                found.append(diagnose(name, check))
            say(console, f"{'ok  ' if found[-1].ok else 'FAIL'}  {name:<10}  {found[-1].found}")
            if found[-1].remedy:
                say(console, f"{'':<18}{found[-1].remedy}")
        else:
            found.append(diagnose(name, check))
    failed = [each.check for each in found if not each.ok]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        say(console, f"{', '.join(failed)}: see above" if failed else "everything is right")
    return 1 if failed else 0
