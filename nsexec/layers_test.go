package nsexec

import (
	"errors"
	"os"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/mounts"
)

// layersOf makes directories that everybody may read, each a layer with the
// given files, links ("name->target") and directories ("name/").
func layersOf(t *testing.T, layers ...[]string) []mounts.Source {
	t.Helper()
	var out []mounts.Source
	for _, entries := range layers {
		dir := sandboxDir(t)
		for _, e := range entries {
			var err error
			name, to, isLink := strings.Cut(e, "->")
			switch {
			case isLink:
				err = os.Symlink(to, dir+"/"+name)
			case strings.HasSuffix(e, "/"):
				err = os.MkdirAll(dir+"/"+name, 0o755)
			default:
				err = os.WriteFile(dir+"/"+name, []byte(name+" of the layer"), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, mounts.Source{Path: dir})
	}
	return out
}

// Layers lie below what the plan makes: links and files in the place of its
// mount points and files have no effect, and none of it can be written.
func TestLayersLieBelowThePlan(t *testing.T) {
	host := sandboxDir(t)
	s := newSpec("/bin/sh", "-c", `cat /own /both; ls /ws /etc; cat /etc/passwd; ls -d /proc/self/ns; echo x >/dev/null; touch /new /own 2>/dev/null || echo read-only
echo x >/tmp/x && echo x >/dev/shm/x && echo x >/ws/x && cat /dev/shm/x; head -1 /proc/self/mountinfo; ls /hidden`)
	s.Plan = systemPlan(mounts.Tmpfs{Target: "/ws", Mode: 0o1777}, mounts.Dir{Target: "/hidden", Mode: 0o755})
	s.Plan.Layers = layersOf(t,
		[]string{"both", "etc/", "etc/upper", "proc->" + host, "ws->" + host, "tmp->/proc/1/root", "etc/passwd->" + host + "/canary", "dev"},
		[]string{"both", "own", "etc/", "etc/lower", "hidden", "usr->" + host, "bin->" + host})
	out, o := run(t, s)
	lines := strings.Split(out, "\n")
	want := []string{"own of the layerboth of the layer/etc:", "lower", "passwd", "upper", "", "/ws:", "worker:x:1000:1000::/home/worker:/bin/sh", "/proc/self/ns", "read-only", "x"}
	for i, w := range want {
		if i >= len(lines) || lines[i] != w {
			t.Fatalf("%+v: line %d of\n%s\nis not %q", o, i, out, w)
		}
	}
	if root := lines[len(want)]; !strings.Contains(root, " / / ro,nosuid,nodev") || !strings.Contains(root, "lowerdir=top:1:2") || strings.Contains(out, host) {
		t.Errorf("the root is mounted as %q", root)
	}
	if entries, err := os.ReadDir(host); err != nil || len(entries) != 0 {
		t.Errorf("on the host are %v %v", entries, err)
	}
}

// A layer that is not there stops the launch.
func TestLayerMissing(t *testing.T) {
	s := newSpec("/bin/true")
	s.Plan = systemPlan()
	s.Plan.Layers = append(layersOf(t, []string{"a"}), mounts.Source{Path: "/nonexistent/layer"})
	_, err := Launch(testContext(t), s)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("launched: %v", err)
	}
}
