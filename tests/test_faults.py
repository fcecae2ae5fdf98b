"""The table of deliberate faults is up to date; `python -m tests.faults` applies them."""

import pytest

from tests.faults import FAULTS, ROOT, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.file)
def test_the_text_is_there_once(fault: Fault) -> None:
    text = (ROOT / "caspar" / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.right) == 1
    assert fault.wrong != fault.right
    assert all((ROOT / "tests" / one).exists() for one in fault.tests.split())
