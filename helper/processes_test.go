package helper

import (
	"context"
	"os"
	"os/exec"
	"testing"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 7 0 999 5000 42 18446744073709551615"
	for name, tc := range map[string]struct {
		text string
		want processStat
		ok   bool
	}{
		"plain":             {"12 (sh)" + rest, processStat{127, 7, 42}, true},
		"a name with stats": {"12 (a) S 1 1 (b)" + rest, processStat{127, 7, 42}, true},
		"short":             {"12 (sh) S 1 2", processStat{}, false},
		"empty":             {"", processStat{}, false},
	} {
		if got, ok := parseStat([]byte(tc.text)); ok != tc.ok || (ok && got != tc.want) {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
	}
}

func TestCountDescendants(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 60 & sleep 60 & echo ready; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, pid := range append(childrenOf(cmd.Process.Pid), cmd.Process.Pid) {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill() // our child, or a child of it that nobody has waited for
			}
		}
		_ = cmd.Wait() // killed
	}()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	u, err := countDescendants(context.Background(), cmd.Process.Pid)
	if err != nil || u.Processes != 3 || u.Tasks != 3 || u.Memory < 3*4096 {
		t.Errorf("%+v, %v", u, err)
	}
}
