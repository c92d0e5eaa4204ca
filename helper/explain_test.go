package helper

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func TestExplain(t *testing.T) {
	for _, test := range []struct {
		name string
		p    policy.SandboxPolicy
		want map[string]string // path to access; "" for absent
	}{
		{"the defaults", policy.SandboxPolicy{}, map[string]string{
			"/workspace/REPOSITORY": "read and write", "/run/yoi/objects/REPOSITORY": "read", "/scratch": "read and write",
			"/usr": "read", "/etc/passwd": "read", "/proc/kcore": "nothing", "/proc/sys": "read", "/cache": "", "/sys": "", "/root": "", "/etc/shadow": "",
		}},
		{"no programs", policy.SandboxPolicy{Root: policy.RootMinimal}, map[string]string{"/usr": "", "/bin": "", "/etc/passwd": "read", "/tmp": "read and write"}},
		{"a build cache", policy.SandboxPolicy{BuildCache: true}, map[string]string{"/cache": "read and write"}},
		{"an image", policy.SandboxPolicy{Root: "image:debian"}, map[string]string{"/": "read", "/usr": ""}},
	} {
		views, err := Explain(test.p)
		if err != nil {
			t.Fatal(test.name, err)
		}
		got := make(map[string]string)
		for _, v := range views {
			got[v.Path] = v.Access
			if v.What == "" || strings.Contains(v.What, "explained") {
				t.Errorf("%s: %s is %q", test.name, v.Path, v.What)
			}
		}
		for path, access := range test.want {
			if got[path] != access {
				t.Errorf("%s: %s is %q, want %q", test.name, path, got[path], access)
			}
		}
	}
	if got := ExplainLandlock(policy.SandboxPolicy{BuildCache: true}); strings.Contains(got, "ABI") && !strings.Contains(got, "/cache") {
		t.Error(got)
	}
}
