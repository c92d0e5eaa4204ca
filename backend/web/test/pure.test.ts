import assert from "node:assert/strict";
import { test } from "node:test";
import { points } from "../src/chart.js";
import { ago, bytes, network } from "../src/format.js";
import { LogBuffer, safeClass } from "../src/log.js";
import { join, parent } from "../src/tree.js";

test("times are told as the server tells them", () => {
	const now = Date.parse("2026-01-02T00:00:00Z");
	for (const [seconds, want] of [
		[0, "just now"],
		[4, "just now"],
		[59, "59 s ago"],
		[60, "1 min ago"],
		[3599, "59 min ago"],
		[3600, "1 h ago"],
		[47 * 3600, "47 h ago"],
		[48 * 3600, "2 days ago"],
		[61 * 86400, "2 months ago"],
		[1111 * 86400, "3 years ago"],
		[-90, "in 1 min"],
	] as const)
		assert.equal(ago(now - seconds * 1000, now), want);
});

test("sizes are told as the server tells them", () => {
	for (const [n, want] of [
		[0, "0 B"],
		[1023, "1023 B"],
		[1024, "1.0 KiB"],
		[1048575, "1.0 MiB"],
		[5 * 2 ** 30, "5.0 GiB"],
	] as const)
		assert.equal(bytes(n), want);
});

test("networks are told as the server tells them", () => {
	for (const [mode, rules, want] of [
		["none", [], "none"],
		["allowlist", ["a.example:443", "*.b.example:80"], "only chosen destinations (a.example:443, *.b.example:80)"],
		["host", [], "everything that the host reaches"],
		["made up later", [], "made up later"],
	] as const)
		assert.equal(network(mode, rules), want);
});

test("a chart's line fits its box", () => {
	const at = (s: number): string => new Date(s * 1000).toISOString();
	assert.equal(points([], "cpu"), "");
	assert.equal(points([{ at: at(0), cpu_percent: 1, memory_bytes: 1 }], "cpu"), "");
	const two = [
		{ at: at(0), cpu_percent: 0, memory_bytes: 50 },
		{ at: at(2), cpu_percent: 200, memory_bytes: 100 },
	];
	assert.equal(points(two, "cpu"), "0.0,86.0 600.0,4.0");
	assert.equal(points(two, "memory"), "0.0,45.0 600.0,4.0");
});

test("a log's last line is told again, and old ones go", () => {
	const b = new LogBuffer(3);
	const line = (t: string) => [{ t }];
	assert.deepEqual(b.apply({ first: 0, lines: [line("a"), line("b")] }), { from: 0, drop: 0 });
	assert.deepEqual(b.apply({ first: 1, lines: [line("bc"), line("d")] }), { from: 1, drop: 0 });
	assert.deepEqual(
		b.lines.map((l) => l[0]?.t),
		["a", "bc", "d"],
	);
	assert.deepEqual(b.apply({ first: 2, lines: [line("de"), line("f"), line("g")] }), { from: 0, drop: 2 });
	assert.deepEqual(
		b.lines.map((l) => l[0]?.t),
		["de", "f", "g"],
	);
	assert.deepEqual(b.apply({ first: 5, lines: [line("h")] }), { from: 2, drop: 1 });
	assert.deepEqual(b.find("F"), [0]);
	assert.deepEqual(b.find(""), []);
});

test("a log that begins anew, skips lines or tells none stays in order", () => {
	const line = (t: string) => [{ t }];
	for (const [parts, want] of [
		[[[0, ["a", "b"]]], "ab"],
		[
			[
				[0, ["a"]],
				[0, ["b"]],
			],
			"b",
		],
		[
			[
				[0, ["a", "b", "c"]],
				[1, ["B"]],
			],
			"aB",
		],
		[
			[
				[0, ["a"]],
				[9, ["z"]],
			],
			"az",
		],
		[
			[
				[0, ["a"]],
				[1, []],
			],
			"a",
		],
		[[[0, ["a", "b", "c", "d", "e"]]], "cde"],
	] as [[number, string[]][], string][]) {
		const b = new LogBuffer(3);
		for (const [first, lines] of parts) b.apply({ first, lines: lines.map(line) });
		assert.equal(b.lines.map((l) => l[0]?.t).join(""), want);
	}
});

test("what is searched for may be spread over colours", () => {
	const b = new LogBuffer(10);
	b.apply({
		first: 0,
		lines: [[{ t: "err", c: "f1" }, { t: "or: x" }], [{ t: "fine" }], [], [{ t: "ERROR" }], [{ t: "a.b" }]],
	});
	for (const [text, want] of [
		["error", [0, 3]],
		["r: ", [0]],
		[".", [4]],
		["nowhere", []],
	] as [string, number[]][])
		assert.deepEqual(b.find(text), want);
});

test("only the style sheet's colours are classes", () => {
	for (const [c, want] of [
		["b f1 g15", "b f1 g15"],
		["f16 problem constructor b", "b"],
		["f1f2 F1 f f-1 f01 g00", ""],
		['f1"onclick=x d', "d"],
		["\tf1\nf2", ""],
		[undefined, ""],
	] as const)
		assert.equal(safeClass(c), want);
});

test("paths of a tree", () => {
	assert.equal(parent("a/b/c"), "a/b");
	assert.equal(parent("a/"), "");
	assert.equal(parent("a"), "");
	assert.equal(join("", "a"), "a");
	assert.equal(join("a/b", "c"), "a/b/c");
});
