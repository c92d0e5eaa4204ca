package nsexec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/secret"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// backwards gives a value without anybody ever having had it: what is searched for
// later is not in this process' memory because of the test.
type backwards struct{ s string }

func (b *backwards) Read(p []byte) (int, error) {
	if b.s == "" {
		return 0, io.EOF
	}
	p[0], b.s = b.s[len(b.s)-1], b.s[:len(b.s)-1]
	return 1, nil
}

// reversed must not be a constant that reads the same both ways.
const reversed = "9f1b-7c2e-yranac-terces"

func secretValue(t *testing.T) *secret.Value {
	t.Helper()
	v, err := secret.Read(&backwards{reversed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Wipe)
	return v
}

func TestSecretsReachTheWorkerAlone(t *testing.T) {
	for name, layers := range map[string][]mounts.Source{"plain": nil, "on an image": layersOf(t, []string{"run/", "etc/"})} {
		t.Run(name, func(t *testing.T) {
			v := secretValue(t)
			s := newSpec("/bin/sh", "-c", `cd /run/secrets
rev token; echo; stat -c '%a %u' . token; grep -c . empty
printf %s "$TOKEN" | rev; echo; echo "$OTHER"; env | grep -c '^TOKEN='
for try in 'echo x >token' 'chmod 644 token' 'rm token' 'echo x >new' 'mv token other' 'ln token /tmp/hard' 'chmod 755 .'; do
	(eval "$try") 2>/dev/null && echo "could $try"
done
cat /proc/1/environ 2>/dev/null | rev
grep ' /run/secrets ' /proc/self/mountinfo | cut -d' ' -f4-6,8-`)
			s.Env = append(s.Env, "TOKEN=not this one", "OTHER=other")
			s.SecretEnv = []SecretVar{{"TOKEN", v.Bytes()}}
			s.Plan = systemPlan(mounts.Secrets{Target: "/run/secrets", Files: []mounts.SecretFile{{Name: "token", Content: v.Bytes()}, {Name: "empty"}}})
			s.Plan.Layers = layers
			out, o := run(t, s)
			v.Wipe()
			want := fmt.Sprintf("%s\n500 1000\n400 1000\n0\n%s\nother\n1\n", reversed, reversed)
			rest, ok := strings.CutPrefix(out, want)
			if !ok || o.ExitCode != 0 {
				t.Fatalf("%+v:\n%s\nwant\n%s", o, out, want)
			}
			if rest = strings.TrimSpace(rest); !strings.HasPrefix(rest, "/ /run/secrets ro,nosuid,nodev,noexec") || !strings.Contains(rest, "ramfs") || strings.Contains(rest, "\n") {
				t.Errorf("the rest is %q", rest)
			}
			if n := inOwnMemory(t); n != 0 {
				t.Errorf("the value is %d times in the launcher's memory after its use", n)
			}
		})
	}
}

// The search finds what is there, or its finding nothing would say nothing.
func TestMemorySearchFinds(t *testing.T) {
	v := secretValue(t)
	if n := inOwnMemory(t); n != 1 {
		t.Errorf("found %d times", n)
	}
	v.Wipe()
	if n := inOwnMemory(t); n != 0 {
		t.Errorf("found %d times after wiping", n)
	}
}

// inOwnMemory counts where the value is in this process' writable memory.
func inOwnMemory(t *testing.T) (count int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	buf := make([]byte, 1<<16)
	defer clear(buf)
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "rw") || to-from > 1<<30 {
			continue
		}
		for at := from; at < to; at += int64(len(buf)) {
			n, err := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at)
			if err != nil {
				break
			}
			count += countReversed(buf[:n])
		}
		clear(buf)
	}
	return count
}

func countReversed(b []byte) (count int) {
	first, n := reversed[len(reversed)-1], len(reversed)
	for {
		i := bytes.IndexByte(b, first)
		if i < 0 || len(b)-i < n {
			return count
		}
		same := true
		for j := range n {
			same = same && b[i+j] == reversed[n-1-j]
		}
		if same {
			count++
		}
		b = b[i+1:]
	}
}

func TestSecretsAreChecked(t *testing.T) {
	for name, edit := range map[string]func(*Spec){
		"a path as name": func(s *Spec) {
			s.Plan = systemPlan(mounts.Secrets{Target: "/run/secrets", Files: []mounts.SecretFile{{Name: "../x"}}})
		},
		"no name": func(s *Spec) {
			s.Plan = systemPlan(mounts.Secrets{Target: "/run/secrets", Files: []mounts.SecretFile{{}}})
		},
		"one name twice": func(s *Spec) {
			s.Plan = systemPlan(mounts.Secrets{Target: "/run/secrets", Files: []mounts.SecretFile{{Name: "x"}, {Name: "x"}}})
		},
		"NUL in a value":    func(s *Spec) { s.SecretEnv = []SecretVar{{"A", []byte("a\x00b")}} },
		"= in a name":       func(s *Spec) { s.SecretEnv = []SecretVar{{"A=B", nil}} },
		"too large a value": func(s *Spec) { s.SecretEnv = []SecretVar{{"A", make([]byte, 128<<10)}} },
	} {
		s := newSpec("/bin/true")
		edit(s)
		_, err := Launch(testContext(t), s)
		if !errors.Is(err, policy.CodePolicyInvalid) && !errors.Is(err, policy.CodeEnvironmentInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
