package nsexec

import (
	"errors"
	"os"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// Whatever is asked for, the Worker starts beneath the root or not at all, and
// the refusal is one of the five, or one about the command line.
func FuzzRelativeCwd(f *testing.F) {
	dir := sandboxDir(f)
	if err := errors.Join(os.MkdirAll(dir+"/a/b", 0o755), os.Symlink("/", dir+"/abs"), os.Symlink("../..", dir+"/a/up"),
		os.Symlink("b", dir+"/a/in"), os.WriteFile(dir+"/f", nil, 0o644)); err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", ".", "a/b", "a/in/../..", "abs/etc", "a/up/proc", "f", "f/..", "//etc", "a//b/./", "..", "a/\x00", "a/b\n", strings.Repeat("a/", 3000), "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, rel string) {
		s := newSpec("/bin/pwd", "-P")
		s.Plan = systemPlan(mounts.Bind{Target: "/ws/app", Source: mounts.Source{Path: dir}})
		s.CwdRoot, s.RelativeCwd = "/ws/app", rel
		out, _, err := tryRun(t, s)
		if err == nil {
			if out != "/ws/app\n" && !strings.HasPrefix(out, "/ws/app/") {
				t.Fatalf("%q started in %q", rel, out)
			}
			return
		}
		switch policy.AsDiagnostic(err).Code {
		case policy.CodeCwdAbsolute, policy.CodeCwdEscape, policy.CodeCwdSymlinkEscape, policy.CodeCwdMissing, policy.CodeCwdNotDirectory:
		default:
			t.Fatalf("%q: %v", rel, err)
		}
	})
}

func FuzzOutcome(f *testing.F) {
	f.Add([]byte(outcomeMagic + strings.Repeat("\x01", OutcomeSize)))
	f.Add(make([]byte, OutcomeSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, ok, err := ReadOutcome(strings.NewReader(string(b)))
		if ok && (err != nil || !strings.HasPrefix(string(b), outcomeMagic)) {
			t.Fatalf("%+v %v", o, err)
		}
	})
}
