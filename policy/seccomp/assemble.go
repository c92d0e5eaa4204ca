package seccomp

import (
	"fmt"
	"maps"
	"slices"
)

// Machine is what a program must know of the processor architecture.
type Machine struct {
	Arch       uint32                       // AUDIT_ARCH_*
	ForeignBit uint32                       // first number of a second ABI under Arch (x32), 0 if none
	Number     func(string) (uint32, error) // of a call
}

// Assemble writes the filter of a profile as a program for seccomp(2).
//
// It exists beside libseccomp because every launch waits for the kernel to
// check and translate the program, about 0.13 µs an instruction. libseccomp
// tests each number for itself, and each masked comparison with a load of its
// own: 1,100 instructions for the default profile. But numbers with the same
// answer lie in runs, and a choice by one argument needs one load: 121.
// What the program must mean is not decided here: a test of the package
// compile holds it equal to libseccomp's for every call.
func Assemble(p Profile, m Machine) ([]byte, error) {
	calls := map[uint32][]Rule{}
	for _, r := range p.Rules() {
		for _, c := range r.When {
			if c.Mask > low32 {
				return nil, fmt.Errorf("%s: a comparison above the low 32 bits", r.Call)
			}
		}
		nr, err := m.Number(r.Call)
		if err != nil {
			return nil, err
		}
		calls[nr] = append(calls[nr], r)
	}
	a := &assembler{answers: map[Action]label{}}
	start := a.search(runs(calls, p.Default))
	if m.ForeignBit != 0 {
		// A tracer skips a call by setting its number to -1: no foreign ABI.
		skipped := a.test(jeq, ^uint32(0), a.ret(p.Default), a.ret(p.BadABI))
		start = a.test(jge, m.ForeignBit, skipped, start)
	}
	start = a.then(instruction{code: load, k: offsetNr}, start)
	start = a.test(jeq, m.Arch, start, a.ret(p.BadABI))
	a.then(instruction{code: load, k: offsetArch}, start)
	return a.encode()
}

// run is a range of numbers, from first to the next run's, with one answer.
type run struct {
	first uint32
	rules []Rule
}

// runs covers all numbers. A call that no rule names has the default answer.
func runs(calls map[uint32][]Rule, dflt Action) []run {
	free := func(a Action) []Rule { return []Rule{{Action: a}} }
	out := []run{{0, free(dflt)}}
	add := func(first uint32, rules []Rule) {
		last := &out[len(out)-1]
		same := len(rules) == 1 && len(last.rules) == 1 && len(rules[0].When) == 0 &&
			len(last.rules[0].When) == 0 && last.rules[0].Action == rules[0].Action
		switch {
		case same:
		case last.first == first:
			last.rules = rules
		default:
			out = append(out, run{first, rules})
		}
	}
	for _, nr := range slices.Sorted(maps.Keys(calls)) {
		rules := calls[nr]
		if len(rules[0].When) == 0 {
			rules = free(rules[0].Action)
		}
		add(nr, rules)
		if _, named := calls[nr+1]; !named {
			add(nr+1, free(dflt))
		}
	}
	return out
}

// search finds the run by bisection.
func (a *assembler) search(runs []run) label {
	if len(runs) == 1 {
		return a.decide(runs[0].rules, 0)
	}
	mid := len(runs) / 2
	high := a.search(runs[mid:])
	low := a.search(runs[:mid])
	return a.test(jge, runs[mid].first, high, low)
}

// decide answers by the conditions from depth on. The rules cover every value
// (see choice), so the answer that the most of them give needs no test.
func (a *assembler) decide(rules []Rule, depth int) label {
	if len(rules[0].When) == depth {
		return a.ret(rules[0].Action)
	}
	byCond := map[Cond][]Rule{}
	count := map[Action]int{}
	for _, r := range rules {
		c := r.When[depth]
		byCond[c] = append(byCond[c], r)
		if len(r.When) == depth+1 {
			count[r.Action]++
		}
	}
	var usual Action
	for _, action := range slices.Sorted(maps.Keys(count)) {
		if count[action] > count[usual] {
			usual = action
		}
	}
	var tests []Cond
	for c, rs := range byCond {
		if len(rs[0].When) > depth+1 || rs[0].Action != usual {
			tests = append(tests, c)
		}
	}
	slices.SortFunc(tests, compareConds)
	next := a.ret(usual)
	for i, c := range slices.Backward(tests) {
		next = a.test(jeq, uint32(c.Value), a.decide(byCond[c], depth+1), next)
		if i > 0 && tests[i-1].Arg == c.Arg && tests[i-1].Mask == c.Mask {
			continue // the accumulator holds it already
		}
		if c.Mask != low32 {
			next = a.then(instruction{code: and, k: uint32(c.Mask)}, next)
		}
		next = a.then(instruction{code: load, k: offsetArgs + 8*uint32(c.Arg)}, next)
	}
	return next
}
