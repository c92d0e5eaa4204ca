package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const someUser = 54321

func TestAsUser(t *testing.T) {
	AsUser(t, someUser, func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Fatal("still root")
		}
		if err := os.WriteFile(filepath.Join(t.TempDir(), "f"), nil, 0o600); err != nil {
			t.Error(err)
		}
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"} {
			if !strings.Contains(string(b), line) {
				t.Errorf("no %q in:\n%s", line, b)
			}
		}
		if g, err := os.Getgroups(); err != nil || len(g) > 1 {
			t.Errorf("groups %v %v", g, err)
		}
	})
}

func TestAsUserWith(t *testing.T) {
	t.Run("a subtest (odd name)", func(t *testing.T) {
		prepared := 0
		AsUserWith(t, someUser, func() []string {
			prepared++
			return []string{"PREPARED=yes"}
		}, func(t *testing.T) {
			if os.Getenv("PREPARED") != "yes" {
				t.Error("prepare's environment is missing")
			}
		})
		if os.Geteuid() == 0 && prepared != 1 {
			t.Errorf("prepared %d times", prepared)
		}
	})
}

// A failure in the child must be one here, and so must a test that never ran.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		name, out string
		err       error
		fails     bool
	}{
		{"passes", "--- PASS: %s (0.00s)", nil, false},
		{"fails", "--- FAIL: %s", &exec.ExitError{}, true},
		{"never ran", "testing: warning: no tests to run\nPASS", nil, true},
	} {
		var got bool
		t.Run(c.name, func(t *testing.T) {
			rec := &recorder{}
			out := strings.ReplaceAll(c.out, "%s", t.Name())
			err := c.err
			if c.name == "fails" {
				err = exec.Command("false").Run()
			}
			reportTo(rec, t.Name(), someUser, out, err)
			got = rec.failed
		})
		if got != c.fails {
			t.Errorf("%s: failed=%v", c.name, got)
		}
	}
}

type recorder struct{ failed, skipped bool }

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) Skipf(string, ...any)  { r.skipped = true }
func (r *recorder) Logf(string, ...any)   {}
