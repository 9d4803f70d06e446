from text_cleaning import decode, read_dictd, strip_markup, strip_roff

PAGE = r""".\" a comment
.de XX
macro body
..
.TH CAT 1 "September 2022"
.SH BEZEICHNUNG
cat \- Dateien aneinander\%h\(:angen
.SS "Zwei Worte"
\fB\-A\fP, \fI\,DATEI\/\fP
.PP
.BR ls (1),
'
don\(aqt \s-1small\s0 \(em end
"""


def test_roff_keeps_headings_and_words() -> None:
    assert strip_roff(PAGE) == (
        "BEZEICHNUNG\ncat - Dateien aneinanderh\\(:angen\n\n"
        "Zwei Worte\n-A, DATEI\n\nls (1),\n\ndon't small — end"
    )


def test_roff_without_a_heading_is_kept_whole() -> None:
    assert strip_roff(".B bold\nplain") == "bold\nplain"


def test_markup_goes_and_entities_are_resolved() -> None:
    head = "<page><info><desc>head</desc></info>\n"
    body = "<title>A &amp;  B</title>\n\n\n<p>caf&#233;</p><!-- x --></page>"
    assert strip_markup(head + body) == "A & B\n\ncafé"


def test_decode_falls_back_to_latin_1() -> None:
    assert [decode("é".encode()), decode("é".encode("latin-1"))] == ["é", "é"]


def test_dictd_offsets_are_base_64_and_entries_come_once() -> None:
    entries = b"x" * 64 + b"first" + b"second"
    index = "00-database-info\tA\tB\nalpha\tBA\tF\nalef\tBA\tF\nbeta\tBF\tG"
    assert read_dictd(index, entries) == [("alpha", "first"), ("beta", "second")]
