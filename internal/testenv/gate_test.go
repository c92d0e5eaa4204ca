package testenv

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// ending keeps how a test ends itself.
type ending struct {
	testing.TB
	how, why string
}

func (e *ending) Helper() {}

func (e *ending) Fatal(args ...any) { e.end("fails", fmt.Sprint(args...)) }

func (e *ending) Skip(args ...any) { e.end("skips", fmt.Sprint(args...)) }

func (e *ending) Skipf(format string, args ...any) { e.end("skips", fmt.Sprintf(format, args...)) }

func (e *ending) end(how, why string) {
	e.how, e.why = how, why
	runtime.Goexit()
}

func endingOf(gate func(testing.TB)) *ending {
	e := &ending{how: "goes on"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		gate(e)
	}()
	<-done
	return e
}

// Under CI nothing is skipped but what names a feature that the kernel lacks.
func TestGates(t *testing.T) {
	short := flag.Lookup("test.short").Value.String()
	defer flag.Set("test.short", short)
	if err := flag.Set("test.short", "true"); err != nil {
		t.Fatal(err)
	}
	t.Setenv(envNoRoot, "1")
	for name, c := range map[string]struct {
		gate         func(testing.TB)
		atDesk, inCI string
	}{
		"no root":                    {Privileged, "skips", "fails"},
		"no root and no namespace":   {Root, "skips", "fails"},
		"something is not installed": {func(t testing.TB) { Lacking(t, "it") }, "skips", "fails"},
		"no time":                    {Long, "skips", "goes on"},
		"an older kernel":            {func(t testing.TB) { NeedFile(t, "it", "/proc/no-such-feature") }, "skips", "skips"},
		"this kernel":                {func(t testing.TB) { NeedFile(t, "it", "/proc/self") }, "goes on", "goes on"},
		"a Landlock of the future":   {func(t testing.TB) { NeedLandlock(t, 1<<20) }, "skips", "skips"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CI", "")
			if e := endingOf(c.gate); e.how != c.atDesk {
				t.Errorf("at a desk it %s: %s", e.how, e.why)
			}
			t.Setenv("CI", "true")
			e := endingOf(c.gate)
			if e.how != c.inCI || e.how == "skips" && !strings.HasPrefix(e.why, SkipMarker) {
				t.Errorf("under CI it %s: %s", e.how, e.why)
			}
		})
	}
}
