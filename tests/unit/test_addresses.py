"""Which addresses may be called, however they are wrapped."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fleet.delivery.addresses import Kind, Policy
from support.hostile import AMBIGUOUS_WRAPPINGS, DENIED_V4, DENIED_V6, WRAPPINGS, wrapped

OPEN = Policy()
CLOSED = Policy(deny_private=True)
EXCEPTED = Policy(deny_private=True, allow=(ip_network("10.20.0.0/16"), ip_network("fd12::/16")))
POLICIES = [OPEN, CLOSED, EXCEPTED]


def denies(policy: Policy, text: str) -> Kind | None:
    return policy.denies(ip_address(text))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("169.254.169.254", Kind.METADATA),
        ("169.254.170.2", Kind.LINK_LOCAL),
        ("100.100.100.200", Kind.METADATA),
        ("192.0.0.192", Kind.METADATA),
        ("168.63.129.16", Kind.METADATA),
        ("fd00:ec2::254", Kind.METADATA),
        ("fd20:ce::254", Kind.METADATA),
        ("fe80::1", Kind.LINK_LOCAL),
        ("0.0.0.0", Kind.UNSPECIFIED),
        ("::", Kind.UNSPECIFIED),
        ("224.0.0.1", Kind.MULTICAST),
        ("ff02::1", Kind.MULTICAST),
        ("255.255.255.255", Kind.BROADCAST),
        ("240.0.0.1", Kind.RESERVED),
        ("100::1", Kind.RESERVED),
        ("4000::1", Kind.RESERVED),
        ("192.0.2.1", Kind.DOCUMENTATION),
        ("2001:db8::1", Kind.DOCUMENTATION),
    ],
)
def test_what_no_job_needs_is_denied_under_every_policy(text: str, kind: Kind) -> None:
    everything = Policy(deny_private=True, allow=(ip_network("0.0.0.0/0"), ip_network("::/0")))
    assert [denies(policy, text) for policy in (OPEN, CLOSED, everything)] == [kind] * 3


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("127.0.0.1", Kind.LOOPBACK),
        ("::1", Kind.LOOPBACK),
        ("10.0.0.1", Kind.PRIVATE),
        ("172.31.255.255", Kind.PRIVATE),
        ("192.168.1.1", Kind.PRIVATE),
        ("100.64.0.1", Kind.PRIVATE),
        ("fd00::1", Kind.PRIVATE),
        ("fec0::1", Kind.PRIVATE),
    ],
)
def test_a_neighbour_is_denied_only_if_the_operator_says_so(text: str, kind: Kind) -> None:
    assert (denies(OPEN, text), denies(CLOSED, text)) == (None, kind)


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"])
def test_a_public_address_may_be_called(text: str) -> None:
    assert [denies(policy, text) for policy in POLICIES] == [None] * 3


def test_every_address_of_the_hostile_list_is_denied() -> None:
    assert [text for text in DENIED_V4 + DENIED_V6 if not denies(CLOSED, text)] == []


def test_an_exception_opens_its_network_and_nothing_beside_it() -> None:
    texts = ["10.20.0.1", "10.20.255.255", "fd12::1", "10.21.0.0", "10.19.255.255", "127.0.0.1", "fd13::1"]
    assert [denies(EXCEPTED, text) is None for text in texts] == [True, True, True, False, False, False, False]


def test_an_exception_around_a_metadata_address_does_not_open_it() -> None:
    policy = Policy(deny_private=True, allow=(ip_network("100.64.0.0/10"), ip_network("fd00::/8")))
    assert denies(policy, "100.100.100.199") is None
    assert denies(policy, "100.100.100.200") == denies(policy, "fd00:ec2::254") == Kind.METADATA


@pytest.mark.parametrize("text", ["fe80::1%eth0", "::1%lo", "2606:4700::1111%eth0", "::ffff:8.8.8.8%1"])
def test_an_address_with_a_zone_is_a_neighbour_on_the_wire(text: str) -> None:
    assert denies(OPEN, text) == Kind.LINK_LOCAL


def test_a_wrapping_inside_a_private_network_needs_both_to_be_allowed() -> None:
    assert denies(CLOSED, "fd12::5efe:8.8.8.8") == Kind.PRIVATE
    assert denies(EXCEPTED, "fd12::5efe:8.8.8.8") is None
    assert denies(EXCEPTED, "fd12::5efe:192.168.0.1") == Kind.PRIVATE


def test_a_teredo_address_is_denied_for_its_server_as_for_its_client() -> None:
    assert denies(OPEN, "2001:0:a9fe:a9fe::f7f7:f7f7") == Kind.METADATA
    assert denies(OPEN, "2001:0:808:808::5601:5601") == Kind.METADATA
    assert denies(OPEN, "2001:0:808:808::f7f7:f7f7") is None


addresses = st.one_of(
    st.sampled_from([IPv4Address(text) for text in DENIED_V4]),
    st.ip_addresses(v=4),
    *(st.ip_addresses(network=network) for network in ("10.0.0.0/8", "169.254.0.0/16", "127.0.0.0/8", "10.20.0.0/16")),
)


@given(addresses, st.sampled_from(sorted(WRAPPINGS)), st.sampled_from(POLICIES))
@example(IPv4Address("8.8.8.8"), "local nat64", CLOSED)
def test_a_wrapped_address_is_judged_like_the_one_inside(inside: IPv4Address, how: str, policy: Policy) -> None:
    assume(how != "compatible" or int(inside) > 1)  # those two are :: and ::1
    assert policy.denies(wrapped(how, inside)) == policy.denies(inside)


@given(addresses, st.sampled_from(sorted(AMBIGUOUS_WRAPPINGS)), st.sampled_from(POLICIES))
def test_a_denied_address_stays_denied_where_its_place_is_unknown(
    inside: IPv4Address, how: str, policy: Policy
) -> None:
    assume(policy.denies(inside) and inside.packed[0])  # 0.0.0.0/8 cannot be told from padding
    assert policy.denies(wrapped(how, inside))


@given(st.ip_addresses(v=6))
def test_an_ipv6_address_outside_what_is_handed_out_is_never_public(address: IPv6Address) -> None:
    assume(address not in ip_network("2000::/3") and address not in ip_network("::/32"))
    assume(address not in ip_network("64::/16"))
    assert CLOSED.denies(address)
