#!/usr/bin/env python3
"""Verifies a Postrider ledger without Postrider: the hash chain, byte by byte, from the database or from an export. In a database, also that
the head of the chain is the last entry, and that checkpoints stand for the entries they name, one run of entries after the other. In an
export, also that amounts are written as their currencies are, and that the base currency is the one that seals name: neither is hashed.

    ledger-verify.py --sqlite .postrider/postrider.db [--tenant acme]
    ledger-verify.py --postgres postgres://host/db    [--tenant acme]     (needs psql)
    postrider ledger --tenant acme export --format jsonl | ledger-verify.py --jsonl -
    ledger-verify.py --sqlite … --key HEX             the public key that you know from elsewhere: others may not have signed

Prints one line a tenant with its last hash: compare it with `postrider ledger verify` or with a published checkpoint.
Exit code 0: everything holds. 3: something was changed, and it says what; or --tenant keeps no books there. Standard
library only; signatures of checkpoints are checked too where the package `cryptography` is installed, and else it says that they were not.
"""
import argparse
import csv
import datetime
import hashlib
import json
import re
import sqlite3
import struct
import subprocess
import sys
from collections import defaultdict

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
except ImportError:
    Ed25519PublicKey = None

EPOCH = datetime.date(1970, 1, 1)
BEGINNING = (0, bytes(32))
KINDS = ["posted", "pending", "settlement", "void", "reversal", "closing", "opening", "seal"]
ENTRY = ["tenant", "number", "kind", "day", "posted_at", "source_event", "payload_hash", "rule", "description", "metadata",
         "refers_to", "hash"]
LINE = ["tenant", "entry", "line", "account", "side", "amount", "currency", "base_amount", "rate", "rate_source"]
# Currencies whose minor unit is not a hundredth, by the digits that they have after the point.
DIGITS = {code: digits for digits, codes in {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}.items() for code in codes.split()}
# What a value that no ledger wrote makes of the bytes of a hash.
UNREADABLE = (struct.error, TypeError, ValueError, AttributeError)


def text(value):
    data = value.encode()
    return struct.pack(">I", len(data)) + data


def entry_hash(before, entry):
    """SHA-256 over the bytes that crates/ledger/src/chain.rs documents."""
    out = bytearray(b"\x01") + before
    out += text(entry["tenant"]) + struct.pack(">QBiq", entry["number"], entry["kind"], entry["day"], entry["posted_at"])
    out += text(entry["source_event"]) + entry["payload_hash"]
    out += text(entry["rule"]) + text(entry["description"]) + text(entry["metadata"])
    out += struct.pack(">QI", entry["refers_to"] or 0, len(entry["lines"]))
    for line in entry["lines"]:
        out += text(line["account"]) + struct.pack(">Bq", line["side"], line["amount"]) + text(line["currency"])
        out += struct.pack(">q", line["base_amount"]) + text(line["rate"] or "") + text(line["rate_source"] or "")
    return hashlib.sha256(out).digest()


def verify(entries):
    """Checks one tenant's entries in their order. Returns their hashes and what is wrong."""
    problems, hashes, before, number = [], [], bytes(32), 0
    for entry in entries:
        number += 1
        try:
            if entry["number"] != number:
                problems.append(f"entry {number} is missing")
                # From here on those after it are counted, unless it is no number.
                number = entry["number"] if isinstance(entry["number"], int) else number
            elif entry_hash(before, entry) != entry["hash"]:
                problems.append(f"entry {number} does not have the hash that is stored for it")
            problems += check_lines(number, entry)
        except UNREADABLE as why:
            problems.append(f"entry {number} or one of its lines has a value that no ledger wrote: {why}")
        before = entry["hash"]
        hashes.append(before)
    return hashes, problems


def check_lines(number, entry):
    """What no hash tells of lines: that they balance, how they are numbered, and whether nothing is nothing."""
    problems, sums = entry.get("problems", []), defaultdict(int)
    for line in entry["lines"]:
        sign = 1 if line["side"] == 1 else -1
        sums[line["currency"]] += sign * line["amount"]
        sums["base"] += sign * line["base_amount"]
    if any(sums.values()):
        problems.append(f"the debits and credits of entry {number} differ")
    if len(entry["lines"]) < 2 and entry["kind"] != KINDS.index("seal") + 1:
        problems.append(f"entry {number} has {len(entry['lines'])} lines")
    if [line["line"] for line in entry["lines"]] != list(range(1, len(entry["lines"]) + 1)):
        problems.append(f"the lines of entry {number} are not numbered from 1 on")
    # No reference has the hash of 0, and no rate that of an empty one.
    half = any((line["rate"] is None) != (line["rate_source"] is None) or line["rate"] == "" for line in entry["lines"])
    if entry["refers_to"] == 0 or half:
        problems.append(f"entry {number} has 0 for a reference, or a line with an empty rate, or with a rate or a source of one alone")
    return problems


def check_head(head, entries):
    """Whether what the books say of the end of their chain is the last entry."""
    last = (entries[-1]["number"], entries[-1]["hash"]) if entries else BEGINNING
    if head == last:
        return []
    return [f"the head of the chain says entry {head[0]} with hash {shown(head[1])}, the last entry is {last[0]} with hash {shown(last[1])}"]


def in_order(stray):
    """Lines by tenant and entry, whatever somebody wrote there."""
    return str(stray[0]), str(stray[1]).rjust(20)


def shown(value):
    """A hash or a key as it is printed, also one that no ledger wrote."""
    return value.hex() if isinstance(value, bytes) else repr(value)


def merkle_root(hashes):
    level = [hashlib.sha256(b"\x00" + one).digest() for one in hashes]
    while len(level) > 1:
        pairs = [level[at:at + 2] for at in range(0, len(level), 2)]
        level = [hashlib.sha256(b"\x01" + pair[0] + pair[1]).digest() if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def check_checkpoint(tenant, checkpoint, hashes, keys):
    first, last, root, head, made_at, public_key, signature = checkpoint
    name = f"the checkpoint of entries {first} to {last}"
    if not 1 <= first <= last <= len(hashes):
        return [f"{name} names entries that are gone, or never were"]
    run = hashes[first - 1:last]
    problems = []
    if merkle_root(run) != root or run[-1] != head:
        problems.append(f"{name} stands for other entries than these")
    if keys and shown(public_key) not in keys:
        problems.append(f"{name} is signed by {shown(public_key)}, which is none of the keys that were named")
    if Ed25519PublicKey is None:
        return problems
    said = b"postrider.ledger.checkpoint.v1\0" + text(tenant) + struct.pack(">QQ", first, last) + root + head
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, said + struct.pack(">q", made_at))
    except (InvalidSignature, *UNREADABLE):
        problems.append(f"{name} has a wrong signature")
    return problems


def check_checkpoints(tenant, checkpoints, entries, hashes, keys):
    """Each of them, and that none is gone: they follow one another, and a seal says up to which entry there were some."""
    problems, following = [], 1
    for checkpoint in checkpoints:
        try:
            if checkpoint[0] != following:
                problems.append(f"the checkpoint of entries {checkpoint[0]} to {checkpoint[1]} does not follow the one before")
            following = checkpoint[1] + 1
            problems += check_checkpoint(tenant, checkpoint, hashes, keys)
        except UNREADABLE as why:
            problems.append(f"a checkpoint has a value that no ledger wrote: {why}")
    said = [str(seal.get("signed_to")) for seal in map(sealed, entries)]
    vouched = max([int(number) for number in said if number.isdecimal()], default=0)
    if following <= vouched:
        problems.append(f"a seal says that entries up to {vouched} were signed; the checkpoint of {following} is gone")
    if keys and not checkpoints and hashes:
        problems.append("none of the entries is signed: there is no checkpoint, and a key was named")
    return problems


def sealed(entry):
    """What the seal of a period says; nothing of other entries, or of what is no seal that a ledger wrote."""
    try:
        says = json.loads(entry["metadata"]) if entry["kind"] == KINDS.index("seal") + 1 else {}
    except UNREADABLE:
        return {}
    return says if isinstance(says, dict) else {}


def join(entries, lines):
    """Tenants with their entries, each with its lines; and whose lines have lost their entry."""
    tenants, by_number, strays = defaultdict(list), {}, set()
    for row in entries:
        entry = dict(zip(ENTRY, row), lines=[])
        tenants[entry["tenant"]].append(entry)
        by_number[entry["tenant"], entry["number"]] = entry
    for row in lines:
        line = dict(zip(LINE, row))
        place = line["tenant"], line["entry"]
        if place in by_number:
            by_number[place]["lines"].append(line)
        else:
            strays.add(place)
    return tenants, strays


def from_sqlite(path):
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    # What is no UTF-8 is read all the same, and named where it is hashed.
    database.text_factory = lambda value: value.decode(errors="surrogateescape")
    # All of one moment, whoever posts meanwhile.
    database.execute("BEGIN")
    entries = database.execute(
        "SELECT tenant, number, kind, effective_on, posted_at, source_event, payload_hash, rule, description, metadata, refers_to, "
        "hash FROM ledger_entry ORDER BY tenant, number")
    lines = database.execute(
        "SELECT tenant, entry, line, account, side, amount, currency, base_amount, rate, rate_source FROM ledger_line "
        "ORDER BY tenant, entry, line")
    checkpoints = database.execute(
        "SELECT tenant, first_number, last_number, root, head_hash, made_at, public_key, signature FROM ledger_checkpoint "
        "ORDER BY tenant, last_number")
    heads = {row[0]: row[1:] for row in database.execute("SELECT tenant, head_number, head_hash FROM ledger_book")}
    return *join(entries, lines), [(row[0], row[1:]) for row in checkpoints], heads


def from_postgres(url):
    """By psql, as a role that may read every tenant (a superuser, or one with BYPASSRLS)."""
    csv.field_size_limit(1 << 30)

    def rows(*selects):
        """The rows of each, all of one moment, whoever posts meanwhile."""
        command = ["psql", url, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"]
        for select in selects:
            command += ["-c", f"COPY ({select}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)", "-c", "\\echo end"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        tables = [[]]
        for row in csv.reader(done.stdout.decode().splitlines(keepends=True)):
            if row == ["end"]:
                tables.append([])
            else:
                tables[-1].append(row)
        return tables[:-1]

    def hexed(value):
        return bytes.fromhex(value.removeprefix("\\x"))

    def integer(value):
        return int(value) if value else None

    # Of what is not finite there is no number, and nothing that could be hashed.
    micros = "CASE WHEN isfinite({0}) THEN (extract(epoch from {0}) * 1000000)::bigint END"
    entries, lines, checkpoints, heads = rows(
        "SELECT tenant, number, kind, CASE WHEN isfinite(effective_on) THEN effective_on - date '1970-01-01' END, "
        f"{micros.format('posted_at')}, source_event, payload_hash, rule, description, metadata, refers_to, hash "
        "FROM postrider.ledger_entry ORDER BY tenant, number",
        # A text is told with a letter before it: nothing and an empty one are not the same.
        "SELECT tenant, entry, line, account, side, amount, currency, base_amount, 'x' || rate, 'x' || rate_source "
        "FROM postrider.ledger_line ORDER BY tenant, entry, line",
        f"SELECT tenant, first_number, last_number, root, head_hash, {micros.format('made_at')}, public_key, signature "
        "FROM postrider.ledger_checkpoint ORDER BY tenant, last_number",
        "SELECT tenant, head_number, head_hash FROM postrider.ledger_book")
    entries = [[r[0], int(r[1]), int(r[2]), integer(r[3]), integer(r[4]), r[5], hexed(r[6]), r[7], r[8], r[9], integer(r[10]),
                hexed(r[11])] for r in entries]
    lines = [[r[0], int(r[1]), int(r[2]), r[3], int(r[4]), int(r[5]), r[6], int(r[7]), r[8][1:] if r[8] else None,
              r[9][1:] if r[9] else None] for r in lines]
    checkpoints = [(r[0], (int(r[1]), int(r[2]), hexed(r[3]), hexed(r[4]), integer(r[5]), hexed(r[6]), hexed(r[7])))
                   for r in checkpoints]
    return *join(entries, lines), checkpoints, {r[0]: (int(r[1]), hexed(r[2])) for r in heads}


def once(pairs):
    """An object in which no name stands twice: readers would disagree about which one counts."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return members


def whole(number):
    """The number of an entry. Python would read more than one way of writing it."""
    if not re.fullmatch(r"[1-9][0-9]*", number, re.ASCII):
        raise ValueError(f"{number} is not how the number of an entry is written")
    return int(number)


def minor(amount, currency):
    """Minor units of an amount that is written with all digits of its currency. Only the units are hashed: where the point stands is for
    whoever reads it to check."""
    digits = DIGITS.get(currency, 2)
    if not re.fullmatch(r"[0-9]+" + (rf"\.[0-9]{{{digits}}}" if digits else ""), amount, re.ASCII):
        raise ValueError(f"{amount} is not how an amount in {currency} is written")
    return int(amount.replace(".", ""))


def from_jsonl(path):
    """An export. The first line that is no entry ends it: without it there is no chain."""
    tenants, bases = defaultdict(list), {}
    # What is no UTF-8 is read all the same, and named where it is hashed.
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    with sys.stdin if path == "-" else open(path, encoding="utf-8", errors="surrogateescape") as file:
        for at, line in enumerate(file, 1):
            try:
                entry, base = exported(json.loads(line, object_pairs_hook=once))
            except (*UNREADABLE, KeyError) as why:
                print(f"line {at} is no entry as it is exported: {why}")
                sys.exit(3)
            if sealed(entry).get("base_currency", base) != base or bases.setdefault(entry["tenant"], base) != base:
                entry["problems"] = [f"entry {entry['number']} names another base currency than the seals or the entries before it"]
            tenants[entry["tenant"]].append(entry)
    # It does not say where the chain ends.
    return tenants, set(), [], None


def exported(document):
    """An entry as it is exported, and the base currency."""
    base = document["baseCurrency"]
    entry = {
        "tenant": document["tenantId"],
        "number": whole(document["entry"]),
        "kind": KINDS.index(document["kind"]) + 1,
        "day": (datetime.date.fromisoformat(document["effectiveOn"]) - EPOCH).days,
        "posted_at": microseconds(document["postedAt"]),
        "source_event": document["sourceEvent"],
        "payload_hash": bytes.fromhex(document["payloadHash"].removeprefix("sha256:")),
        "rule": document["rule"],
        "description": document["description"],
        "metadata": json.dumps(document["metadata"], sort_keys=True, separators=(",", ":"), ensure_ascii=False),
        "refers_to": None if document["refersTo"] is None else whole(document["refersTo"]),
        "hash": bytes.fromhex(document["hash"]),
        "lines": [{
            "line": place,
            "account": line["account"],
            "side": {"debit": 1, "credit": 2}[line["side"]],
            "amount": minor(line["amount"], line["currency"]),
            "currency": line["currency"],
            "base_amount": minor(line["baseAmount"], base),
            "rate": line.get("rate"),
            "rate_source": line.get("rateSource"),
        } for place, line in enumerate(document["lines"], 1)],
    }
    return entry, base


def microseconds(time):
    """2026-11-15T12:00:00.123456Z, with up to six digits after the point."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    seconds = datetime.datetime.fromisoformat(whole + "+00:00").timestamp()
    return int(seconds) * 1_000_000 + int((fraction + "000000")[:6])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--sqlite", metavar="FILE")
    source.add_argument("--postgres", metavar="URL")
    source.add_argument("--jsonl", metavar="FILE")
    parser.add_argument("--tenant", help="only this one")
    parser.add_argument("--key", metavar="HEX", action="append", default=[], type=str.lower,
                        help="a public key that may have signed checkpoints; without one the key in the database is believed")
    args = parser.parse_args()
    # Whatever somebody wrote into a name, what is wrong is told.
    sys.stdout.reconfigure(errors="backslashreplace")
    if args.sqlite:
        tenants, strays, checkpoints, heads = from_sqlite(args.sqlite)
    elif args.postgres:
        tenants, strays, checkpoints, heads = from_postgres(args.postgres)
    else:
        tenants, strays, checkpoints, heads = from_jsonl(args.jsonl)
    wrong = 0
    # Whose entries are all gone may still have lines, checkpoints, or a head.
    begun = {owner for owner, head in (heads or {}).items() if head != BEGINNING or owner == args.tenant}
    for tenant in {owner for owner, _ in checkpoints} | {owner for owner, _ in strays} | begun:
        tenants.setdefault(tenant, [])
    # Nothing that was verified is not the same as nothing that is wrong.
    if args.tenant is not None and args.tenant not in tenants and args.tenant not in (heads or {}):
        print(f"{args.tenant} keeps no books here; nothing was verified")
        sys.exit(3)
    for tenant, entries in sorted(tenants.items(), key=lambda books: str(books[0])):
        if args.tenant not in (None, tenant):
            continue
        hashes, problems = verify(entries)
        if heads is not None:
            problems += check_head(heads.get(tenant, BEGINNING), entries)
        problems += [f"entry {number} is gone, and lines of it are there" for owner, number in sorted(strays, key=in_order) if owner == tenant]
        if heads is not None:
            own = [checkpoint for owner, checkpoint in checkpoints if owner == tenant]
            problems += check_checkpoints(tenant, own, entries, hashes, args.key)
        wrong += len(problems)
        print(f"{tenant}\t{len(hashes)} entries\t{shown(hashes[-1]) if hashes else ''}\t{'holds' if not problems else 'DOES NOT HOLD'}"
              + ("" if args.key or not checkpoints else "\tkey not pinned")
              + ("" if Ed25519PublicKey or not checkpoints else "\tsignatures not checked"))
        for problem in problems:
            print(f"  {problem}")
    sys.exit(3 if wrong else 0)


if __name__ == "__main__":
    main()
