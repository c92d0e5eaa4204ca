package main

import (
	"strings"
	"testing"
)

func events(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

const (
	passes   = `{"Action":"pass","Package":"p","Test":"TestA"}`
	fails    = `{"Action":"fail","Package":"p","Test":"TestB"}`
	lazy     = `{"Action":"output","Package":"p","Test":"TestC","Output":"    x_test.go:1: not today\n"}`
	noKernel = `{"Action":"output","Package":"p","Test":"TestC","Output":"    x_test.go:1: kernel feature missing: xfs: ENODEV\n"}`
	skips    = `{"Action":"skip","Package":"p","Test":"TestC"}`
	ok       = `{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}`
	leak     = `{"Action":"output","Package":"p","Output":"testenv: LEAK: process 1\n"}`
	pkgFail  = `{"Action":"fail","Package":"p"}`
)

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		in     string
		strict bool
		good   bool
		says   string
	}{
		{"passes", events(passes, ok), true, true, "ok  \tp\t0.1s\n1 passed, 0 failed, 0 skipped\n"},
		{"fails", events(passes, fails), false, false, "1 passed, 1 failed, 0 skipped\n"},
		{"a lazy skip at a desk", events(passes, lazy, skips), false, true, "not today"},
		{"a lazy skip under CI", events(passes, lazy, skips), true, false, "1 passed, 1 failed, 1 skipped\n"},
		{"a missing feature under CI", events(passes, noKernel, skips), true, true, "1 passed, 0 failed, 1 skipped\n"},
		{"nothing ran", events(ok), true, false, "0 passed, 0 failed, 0 skipped\n"},
		{"a test that never ended", events(passes, lazy), true, false, "never ended: p TestC"},
		{"a leak", events(passes, leak, pkgFail), true, false, "testenv: LEAK: process 1\n1 passed, 1 failed, 0 skipped\n"},
		{"a package of a failed test", events(fails, pkgFail), true, false, "0 passed, 1 failed, 0 skipped\n"},
		{"not an event", events(passes, "go: some message"), true, true, "go: some message\n"},
	} {
		var out strings.Builder
		r := newRun(&out, c.strict)
		if err := r.read(strings.NewReader(c.in)); err != nil {
			t.Fatal(err)
		}
		if good := r.close(); good != c.good || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: good=%v\n%s", c.name, good, out.String())
		}
	}
}
