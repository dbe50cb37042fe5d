from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inspect.tables import read_tables, target_name
from agent.rules import rule as r
from agent.rules.parse import canonical, equal, parse_rule, parse_save
from agent.rules.probability import probability_steps, share
from agent.rules.saved import Saved, SavedRule, read_save
from agent.rules.words import ParseError, join, tokens
from agent.state.values import Family
from tests.fakes.dumps import Broken, rules_for, sample_store, saved

DUMPS = Path(__file__).parents[1] / "data/dumps"
FILES = sorted(path.name for path in DUMPS.glob("*.txt"))

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
PORTS = st.integers(1, 65535)
V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(str).filter(lambda ip: "." not in ip)
CIDRS = st.builds("{}/{}".format, V4, st.integers(1, 31)) | V4 | V6 | st.just("2001:db8::/32")
MARKS = st.integers(0, 31).map(lambda bit: 1 << bit)
MATCHES: dict[type, st.SearchStrategy[r.Match]] = {
    r.Comment: st.builds(r.Comment, st.builds("{}/{} {}".format, NAMES, NAMES, NAMES) | NAMES),
    r.Source: st.builds(r.Source, CIDRS, st.booleans()),
    r.Destination: st.builds(r.Destination, CIDRS, st.booleans()),
    r.InInterface: st.builds(r.InInterface, NAMES, st.booleans()),
    r.AddressType: st.builds(r.AddressType, st.sampled_from(["src", "dst"])),
    r.Mark: st.builds(r.Mark, MARKS, st.booleans()),
    r.ConntrackState: st.builds(
        r.ConntrackState, st.sampled_from(["NEW", "INVALID", "RELATED,ESTABLISHED"]), st.booleans()
    ),
    r.Recent: st.builds(r.Recent, NAMES, st.sampled_from([0, 1, 10800])),
    r.Statistic: st.builds(r.Statistic, st.integers(2, 40_000)),
    r.Nfacct: st.builds(r.Nfacct, NAMES),
}
TARGETS: st.SearchStrategy[r.Target] = st.one_of(
    st.builds(r.Jump, st.sampled_from(["DROP", "REJECT", "ACCEPT", "RETURN", "KUBE-SVC-X"])),
    st.builds(r.Dnat, st.builds("{}:{}".format, V4, PORTS)),
    st.builds(r.Dnat, st.builds("[{}]:{}".format, V6, PORTS)),
    st.builds(r.SetMark, st.sampled_from(["or", "xor"]), MARKS),
    st.builds(r.Masquerade, st.booleans()),
)


@st.composite
def rules(draw: st.DrawFn) -> r.Rule:
    """Any rule that the agent might write."""
    kinds = draw(st.lists(st.sampled_from(sorted(MATCHES, key=str)), unique=True, max_size=5))
    matches = [draw(MATCHES[kind]) for kind in kinds]
    if draw(st.booleans()):
        matches.append(r.Protocol(draw(st.sampled_from(["tcp", "udp", "sctp"]))))
        matches += [r.DestinationPort(draw(PORTS))] if draw(st.booleans()) else []
    return r.Rule(tuple(matches), draw(st.none() | TARGETS))


@given(rules())
def test_parsing_is_the_inverse_of_text(one: r.Rule) -> None:
    """Any rule of ours comes back from its text."""
    assert canonical(parse_rule(one.text())) == canonical(one)


@given(rules(), st.randoms(use_true_random=False))
def test_the_order_of_matches_means_nothing(one: r.Rule, random: object) -> None:
    """A rule with its matches in another order is the same rule."""
    matches = list(one.matches)
    random.shuffle(matches)  # type: ignore[attr-defined]  # a random.Random

    assert canonical(r.Rule(tuple(matches), one.target)) == canonical(one)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=6))
def test_words_survive_quoting(words: list[str]) -> None:
    """Words come back from the text of ``join``, whatever is in them."""
    assert tokens(join(words)) == words


@pytest.mark.parametrize(
    ("kernel", "ours"),
    [
        (
            "-s 10.0.0.1/32 -p tcp -m comment --comment x -m tcp --dport 80 -j DROP",
            "-m comment --comment x -m tcp -p tcp -s 10.0.0.1 --dport 80 -j DROP",
        ),
        ("-j MARK --set-xmark 0x4000/0x4000", "-j MARK --or-mark 0x004000"),
        ("-j MARK --set-xmark 0x4000/0x0", "-j MARK --xor-mark 0x004000"),
        ("-j REJECT --reject-with icmp-port-unreachable", "-j REJECT"),
        ("-j REJECT --reject-with icmp6-port-unreachable", "-j REJECT"),
        (
            "-m statistic --mode random --probability 0.33333333349 -j A",
            "-m statistic --mode random --probability 0.3333333333 -j A",
        ),
        (
            "-m recent --rcheck --seconds 5 --reap --name A --mask 255.255.255.255 --rsource -j A",
            "-m recent --name A --rcheck --seconds 5 --reap -j A",
        ),
        (
            "-m conntrack --ctstate RELATED,ESTABLISHED",
            "-m conntrack --ctstate ESTABLISHED,RELATED",
        ),
        ("-s fd00::1/128 -j A", "-s fd00::1 -j A"),
        ("-p 132 -j A", "-p sctp -j A"),
    ],
)
def test_the_kernels_words_mean_what_ours_do(kernel: str, ours: str) -> None:
    """The kernel spells defaults out, and rounds."""
    assert equal([kernel], [ours])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-s fd00::/32 -j A", "-s fd00:: -j A"),
        ("-s 10.0.0.0/31 -j A", "-s 10.0.0.0 -j A"),
        ("-m mark --mark 0x1/0x1 -j A", "-m connmark --mark 0x1/0x1 -j A"),
        ("-m recent --set --name A -j A", "-m recent --update --name A -j A"),
        ("-m recent --set --name A --rdest -j A", "-m recent --set --name A -j A"),
        ("-j A", "-g A"),
        ("-p tcp -m tcp --dport 80 -j A", "-p tcp -m tcp --sport 80 -j A"),
        ("-m statistic --mode random --probability 0.5", "-m statistic --mode nth --every 2"),
        ("! -o a -j A", "-o a -j A"),
    ],
)
def test_what_differs_stays_different(one: str, other: str) -> None:
    """Rules of others are not taken for ours."""
    assert not equal([one], [other])


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000, 40_000, 46_340])
def test_a_share_comes_back_from_steps(count: int) -> None:
    """Up to 46,340 endpoints, neighbouring shares differ in steps of 2^-31."""
    assert share(probability_steps(f"{1 / count:.10f}")) == count


def test_a_probability_that_is_no_share_has_none() -> None:
    """0.4 is between 1/2 and 1/3."""
    assert share(probability_steps("0.4")) == 0


def test_a_share_may_be_a_step_off() -> None:
    """And no more: half of 2^31 steps is 2^30."""
    steps = [2**30 + off for off in (-2, -1, 0, 1, 2)]

    assert [share(one) for one in steps] == [0, 2, 2, 2, 0]
    assert [share(one) for one in (2**31, 1, 0, -1)] == [1, 2**31, 0, 0]


@pytest.mark.parametrize(
    ("text", "steps"),
    [("0", 0), ("1", 2**31), ("0.5", 2**30), ("0.3333333333", 715_827_883), ("1e-9", 2)],
)
def test_steps_of_a_probability(text: str, steps: int) -> None:
    """The nearest multiple of 2^-31."""
    assert probability_steps(text) == steps


@pytest.mark.parametrize("text", ["-0.1", "1.0000001", "1.5", "nan", "half", ""])
def test_what_is_no_probability(text: str) -> None:
    """Said with the text."""
    with pytest.raises(ParseError) as caught:
        probability_steps(text)
    assert str(caught.value) == f"{text!r} is not a probability"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-s", "the rule ends behind '-s'"),
        ("-j", "the rule ends behind '-j'"),
        ("-m", "the rule ends behind '-m'"),
        ("!", "the rule ends behind '!'"),
        ("-s 10.0.0.1 stray -j A", "'stray' stands where an option should"),
        ("-X A", "'-X' stands where an option should"),
        ('-m comment --comment "open', "a quotation mark has no counterpart"),
        ('-m comment --comment "a"b -j A', "a quotation mark has no counterpart"),
        ("-m mark --mark 0xzz/0xzz -j A", "'0xzz' is not a number"),
        ("-j MARK --or-mark many", "'many' is not a number"),
        ("-m statistic --mode random --probability 1.5 -j A", "'1.5' is not a probability"),
        ("-m statistic --mode random --probability half -j A", "'half' is not a probability"),
    ],
)
def test_a_rule_that_no_tool_prints_is_refused(text: str, why: str) -> None:
    """With the reason; never a bare ValueError."""
    with pytest.raises(ParseError, match=why):
        parse_rule(text)


@given(st.text(max_size=60))
def test_any_text_is_a_rule_or_a_parse_error(text: str) -> None:
    """No other exception, whatever the text."""
    try:
        parse_rule(text)
    except ParseError:
        return


# Whole dumps ---------------------------------------------------------------------------------

GOOD = "*nat\n:PREROUTING ACCEPT [1:60]\n:X - [0:0]\n-A PREROUTING -j X\nCOMMIT\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("*nat\n:X - [0:0]\n", "line 3: the text ends without COMMIT"),
        ("*nat\n-A X -j DROP\nCOMMIT\n", "line 2: a rule of chain X, which no line above declares"),
        ("-A X -j DROP\n", "line 1: '-A X -j DROP' stands outside of a table"),
        ("COMMIT\n", "line 1: 'COMMIT' stands outside of a table"),
        ("hello\n", "line 1: 'hello' is nothing that iptables-save prints"),
        ("*nat\n:X\nCOMMIT\n", "line 2: ':X' is neither a rule nor a chain nor COMMIT"),
        ("*nat\n:X - [0:0]\n:X - [0:0]\nCOMMIT\n", "line 3: chain X is declared a second time"),
        ("*nat\n*filter\nCOMMIT\n", "line 2: table filter begins before a COMMIT ended nat"),
        ("*Nat\nCOMMIT\n", "line 1: '\\*Nat' is not the name of a table"),
        ("*nat\nCOMMIT\n*nat\nCOMMIT\n", "line 3: table nat comes a second time"),
        ("*nat\n:X - [0:0]\n[1:2 -A X\nCOMMIT\n", "line 3: '\\[1:2 -A X' is neither"),
        ("*nat\n:X - [0:0]\n[x:y] -A X\nCOMMIT\n", "line 3: '\\[x:y\\] -A X' is neither"),
        ("*nat\n:X - [0:0]\n-D X -j DROP\nCOMMIT\n", "line 3: '-D X -j DROP' is neither"),
        ('*nat\n:X - [0:0]\n-A X -m comment --comment "a\nCOMMIT\n', "line 3: a quotation mark"),
        ("# Generated by x\n*nat\n:X - [0:0]\n-A X \x00\n", "line 5: the text ends without COMMIT"),
    ],
)
def test_a_malformed_dump_is_refused_with_the_line(text: str, why: str) -> None:
    """The reader for commands says which line, and so does the quick one for the audit."""
    with pytest.raises(ParseError, match=why):
        read_save(text)
    with pytest.raises(ParseError, match=why):
        parse_save(text)


def test_a_malformed_rule_is_refused_with_the_line() -> None:
    """The line of the dump, not of the rule's chain."""
    with pytest.raises(ParseError, match="line 4: the rule ends behind '-j'"):
        read_tables(GOOD.replace("-j X", "-j"))


@pytest.mark.parametrize("cut", range(0, 5000, 97))
def test_a_dump_that_was_cut_short_is_refused(cut: int) -> None:
    """Wherever it was cut: half a table is never taken for a table."""
    whole = (DUMPS / "iptables-nft.txt").read_text("utf-8")
    part = whole[: len(whole) - len(whole) * cut // 5000 - 80]
    ends_between_tables = part.rstrip().endswith("COMMIT") or "*" not in part

    if ends_between_tables:
        read_save(part)
    else:
        with pytest.raises(ParseError, match="line "):
            read_tables(part)


@given(st.text(st.sampled_from("*:-[]AICOMTnat X\n\"'0:#\\"), max_size=80))
def test_any_text_is_a_dump_or_a_parse_error(text: str) -> None:
    """No other exception, whatever the text; and both readers agree on the rules."""
    try:
        found = read_tables(text)
    except ParseError:
        return
    plain = {
        t: {c: [e.text for e in chain.entries] for c, chain in chains.items()}
        for t, chains in found.tables.items()
    }
    if "-I" not in text:
        assert parse_save(text) == plain


@pytest.mark.parametrize("name", FILES)
def test_real_dumps_of_both_backends_are_read(name: str) -> None:
    """Every rule with its line and counters, those of docker, firewalld and fail2ban as well."""
    text = (DUMPS / name).read_text("utf-8")
    found = read_tables(text)
    lines = text.splitlines()

    assert found.family is (Family.V6 if name.startswith("ip6") else Family.V4)
    assert found.counted
    assert found.rules == sum("] -A " in line for line in lines)
    for chains in found.tables.values():
        for chain in chains.values():
            for entry in chain.entries:
                assert lines[entry.line - 1].endswith(f"-A {chain.name} {entry.text}".rstrip())


@pytest.mark.parametrize("tool", ["iptables", "ip6tables"])
def test_both_backends_print_the_same(tool: str) -> None:
    """The same rules were given to both, so the same rules are read from both."""
    legacy, nft = (
        read_tables((DUMPS / f"{tool}-{backend}.txt").read_text("utf-8"))
        for backend in ("legacy", "nft")
    )

    assert {t: {c: len(x.entries) for c, x in cs.items()} for t, cs in legacy.tables.items()} == {
        t: {c: len(x.entries) for c, x in cs.items()} for t, cs in nft.tables.items()
    }
    for table, chains in legacy.tables.items():
        for name, chain in chains.items():
            ours = [canonical(entry.rule) for entry in chain.entries]
            theirs = [canonical(entry.rule) for entry in nft.entries(table, name)]
            assert ours == theirs, name


def test_a_comment_may_hold_anything() -> None:
    """Quotation marks, backslashes and even line ends, as iptables prints them."""
    text = (
        "*mangle\n:INPUT ACCEPT [0:0]\n"
        '[0:0] -A INPUT -m comment --comment "a\nb \\"q\\" it\\\'s" -j ACCEPT\nCOMMIT\n'
    )
    (entry,) = read_tables(text).entries("mangle", "INPUT")

    assert entry.rule.matches == (r.Comment('a\nb "q" it\'s'),)
    assert parse_save(text)["mangle"]["INPUT"] == [entry.text]


def test_a_line_end_within_the_second_of_two_texts() -> None:
    """Quotation marks are counted over the whole line."""
    rule = '-m comment --comment "a" -j LOG --log-prefix "b\nc"'
    text = f"*nat\n:X - [0:0]\n-A X {rule}\nCOMMIT\n"

    assert parse_save(text) == {"nat": {"X": [rule]}}
    assert read_save(text).tables["nat"]["X"].rules == [SavedRule(rule, 3)]


def test_rules_on_end_are_kept_as_they_stand_until_somebody_asks() -> None:
    """One text takes a fraction of the memory of a list; quotation marks are no reason for one."""
    runs = "-A X -j A\n", '-A Y -m comment --comment "a b" -j B\n-A Y -j C\n'
    found = read_save(f"*nat\n:X - [0:0]\n:Y - [0:0]\n{''.join(runs)}COMMIT\n").tables["nat"]

    assert [(chain.run, chain.first) for chain in found.values()] == [(runs[0], 4), (runs[1], 5)]
    assert found["Y"].texts == ['-m comment --comment "a b" -j B', "-j C"]
    assert found["Y"].run == runs[1]
    assert [(one.text, one.line) for one in found["Y"].rules][1] == ("-j C", 6)
    assert found["Y"].run == ""


def test_a_text_that_looks_like_two_rules() -> None:
    """It is one, and those in front of it and behind it are what they are."""
    rule = '-m comment --comment "one\n-A X two" -j C'
    before = ["-j A", "-s 10.0.0.1/32 -j B", '-m comment --comment "even" -j B']
    text = "".join(f"-A X {one}\n" for one in (*before, rule, "-j D"))
    chain = read_save(f"*nat\n:X - [0:0]\n{text}COMMIT\n").tables["nat"]["X"]

    assert chain.texts == [*before, rule, "-j D"]
    assert [one.line for one in chain.rules] == [3, 4, 5, 6, 8]


def test_restore_input_is_read_as_the_kernel_would_hold_it() -> None:
    """What is inserted stands in front, in reverse."""
    text = "*nat\n:X - [0:0]\n-I OUTPUT -j X\n-I OUTPUT -j RETURN\n-A X -j DROP\nCOMMIT\n"
    found = read_tables(text)

    assert [target_name(entry.rule.target) for entry in found.entries("nat", "OUTPUT")] == [
        "RETURN",
        "X",
    ]


def test_a_built_in_chain_is_there_once_something_is_inserted() -> None:
    """With an empty kernel's policy, in the line that named it first; ours must be declared."""
    text = "*nat\n:X - [0:0]\n-I OUTPUT -j X\n-I OUTPUT -j RETURN\n-I X -j DROP\nCOMMIT\n"
    found = read_save(text).tables["nat"]

    assert [(chain.name, chain.policy, chain.line) for chain in found.values()] == [
        ("X", "-", 2),
        ("OUTPUT", "ACCEPT", 3),
    ]
    assert found["OUTPUT"].rules == [SavedRule("-j RETURN", 4), SavedRule("-j X", 3)]
    for text, why in (
        ("*nat\n-I y -j DROP\nCOMMIT\n", "line 2: a rule of chain y, which no line above declares"),
        ("*nat\n-I Y-Z -j DROP\nCOMMIT\n", "line 2: a rule of chain Y-Z, which no"),
        ("*nat\nCOMMIT\n-I OUTPUT -j X\n", "line 3: '-I OUTPUT -j X' stands outside of a table"),
    ):
        with pytest.raises(ParseError, match=why):
            read_save(text)


WHOLE = """\
# Generated by iptables-save v1.8.9 (nf_tables) on Sun Nov 29 20:50:00 2026 on x
*filter
:X - [0:0]
:INPUT DROP [10:600]

# Warning: "odd
#note
-A X -j A
-A X
[5:300] -A INPUT -m comment --comment "a
b" -j X
[6:400] -I OUTPUT
-I X -j C
COMMIT
# Completed on Sun Nov 29 20:50:00 2026
*raw
:X -
-A X -j B
COMMIT
# Generated by somebody else on Monday
"""


def _rules_of(found: Saved) -> dict[str, dict[str, tuple[str, int, list[SavedRule]]]]:
    return {
        table: {name: (chain.policy, chain.line, chain.rules) for name, chain in chains.items()}
        for table, chains in found.tables.items()
    }


def test_rules_that_do_not_stand_together_are_one_chain() -> None:
    """In their order, whatever lies between them, with their lines; so is a line of two."""
    text = '*nat\n:X - [0:0]\n:Y -\n-A X -j A\n-A X\n-A Y -j B\n-A X -j C\n-A X "\n" -j D\nCOMMIT\n'

    assert _rules_of(read_save(text)) == {
        "nat": {
            "X": (
                "-",
                2,
                [
                    SavedRule("-j A", 4),
                    SavedRule("", 5),
                    SavedRule("-j C", 7),
                    SavedRule('"\n" -j D', 8),
                ],
            ),
            "Y": ("-", 3, [SavedRule("-j B", 6)]),
        }
    }


def test_everything_that_a_dump_says() -> None:
    """Chains with policy and line, rules with counters and line, remarks, and who wrote it."""
    found = read_save(WHOLE)

    assert _rules_of(found) == {
        "filter": {
            "X": ("-", 3, [SavedRule("-j C", 13), SavedRule("-j A", 8), SavedRule("", 9)]),
            "INPUT": ("DROP", 4, [SavedRule('-m comment --comment "a\nb" -j X', 10, 5, 300)]),
            "OUTPUT": ("ACCEPT", 12, [SavedRule("", 12, 6, 400)]),
        },
        "raw": {"X": ("-", 17, [SavedRule("-j B", 18)])},
    }
    assert found.remarks == ['Warning: "odd', "note"]
    assert found.counted
    assert found.generator == "iptables-save v1.8.9 (nf_tables)"
    assert parse_save(WHOLE.replace("-I OUTPUT", "-A INPUT").replace("-I", "-A")) == {
        "filter": {
            "X": ["-j A", "", "-j C"],
            "INPUT": ['-m comment --comment "a\nb" -j X', ""],
        },
        "raw": {"X": ["-j B"]},
    }
    assert not read_save(GOOD).counted
    assert not read_save(GOOD.replace("-A PRE", "-I PRE")).counted


LONG = "x" * 79


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{LONG}x", f"line 1: '{LONG}x' is nothing that iptables-save prints"),
        (f"\n{LONG}xy", f"line 2: '{LONG}x...' is nothing that iptables-save prints"),
        (":X - [0:0]", "line 1: ':X - [0:0]' stands outside of a table"),
        ("[0:0] -A X", "line 1: '[0:0] -A X' stands outside of a table"),
        ("-D X", "line 1: '-D X' stands outside of a table"),
        ("-A X", "line 1: '-A X' stands outside of a table"),
        ("-A  -j A", "line 1: '-A  -j A' stands outside of a table"),
        ("*nat", "line 1: the text ends without COMMIT, so it has been cut short"),
        ("*nat ;", "line 1: '*nat ;' is not the name of a table"),
        (
            f"*nat\n:X - [0:0]\n[0:0] -D {LONG}",
            f"line 3: '[0:0] -D {'x' * 71}...' is neither a rule nor a chain nor COMMIT",
        ),
        ("*nat\n:X z [0:0]", "line 2: ':X z [0:0]' is neither a rule nor a chain nor COMMIT"),
        ("*nat\n:X Y - [0:0]", "line 2: ':X Y - [0:0]' is neither a rule nor a chain nor COMMIT"),
        (
            '*nat\n:X - [0:0]\n-A X -j "a\nb\nCOMMIT\n-A X -j "c"',
            "line 3: a quotation mark is not closed: '-A X -j \"a'",
        ),
        (
            '*nat\n:X -\n-A X -j "a\nCOMMIT\nb"\nCOMMIT',
            "line 3: a quotation mark is not closed: '-A X -j \"a'",
        ),
        ('*nat\n:X -\n-A X "', "line 3: a quotation mark is not closed: '-A X \"'"),
        (
            "*nat\nCOMMIT\n*nat\nCOMMIT",
            (
                "line 3: table nat comes a second time; a text holds the rules of one family and"
                " one backend"
            ),
        ),
        (
            "*nat\n-A X -j A\nCOMMIT",
            "line 2: a rule of chain X, which no line above declares",
        ),
        ("*nat\n-A  -j A\nCOMMIT", "line 2: a rule of chain , which no line above declares"),
        (
            "*nat\n:X -\nCOMMIT\n*raw\n-A X",
            "line 5: a rule of chain X, which no line above declares",
        ),
        ("*nat\n:X -\nCOMMIT\n[0:0] -A X", "line 4: '[0:0] -A X' stands outside of a table"),
    ],
)
def test_what_is_said_of_a_malformed_dump(text: str, message: str) -> None:
    """Both readers say the same: the line, what is wrong, and 80 characters of it at the most."""
    for read in (read_save, parse_save):
        with pytest.raises(ParseError) as caught:
            read(text)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("", True),
        (" \n\n", False),
        ("\n\n", True),
        ("# a remark", True),
        ("# Generated by ", False),
    ],
)
def test_a_text_without_a_table(text: str, *, good: bool) -> None:
    """Nothing, or a remark of the tool, is an empty kernel; anything else is something else."""
    if good:
        assert read_save(text).tables == {}
    else:
        with pytest.raises(ParseError, match=r"^line 1: "):
            read_save(text)


def test_remarks_of_the_tools_are_kept() -> None:
    """A table that nft cannot show is no empty table."""
    warning = "# Warning: iptables-legacy tables present\n"
    unreadable = "# Table `nat' is incompatible, use 'nft' tool.\n"
    text = warning + unreadable + GOOD.replace("nat", "filter")
    found = read_tables(text)

    assert found.unreadable == ("nat",)
    assert len(found.remarks) == 2


def test_counters_in_front_of_rules_are_numbers() -> None:
    """As iptables-save -c prints them; without them they are 0."""
    dump = Broken(saved(rules_for(sample_store())))
    dump.replace("^-A PREROUTING", "[12:720] -A PREROUTING")
    found = read_tables(str(dump))

    (entry,) = found.entries("nat", "PREROUTING")
    assert (entry.packets, entry.bytes) == (12, 720)
