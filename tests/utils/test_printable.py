from aitune.utils.printable import printable


def test_what_a_terminal_would_obey_is_escaped_and_the_rest_stays() -> None:
    assert printable("one\x1b[2J\r\ntwo\x9b\u202e\udc80") == r"one\x1b[2J\r\ntwo\x9b\u202e\udc80"
    assert printable("é, 漢字 and 'quotes'") == "é, 漢字 and 'quotes'"
