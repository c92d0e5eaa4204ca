package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const dir = "../../systemd"

func units(t *testing.T, kinds ...string) (files []string) {
	t.Helper()
	for _, k := range kinds {
		found, err := filepath.Glob(dir + "/*." + k)
		if err != nil || len(found) == 0 {
			t.Fatalf("no %s: %v", k, err)
		}
		files = append(files, found...)
	}
	return files
}

// TestVerify looks at the units in a root of their own, so that those of this
// machine play no part.
func TestVerify(t *testing.T) {
	root := t.TempDir()
	put := func(from, to string, mode os.FileMode) {
		t.Helper()
		b := []byte("#!/bin/sh\n")
		if from != "" {
			var err error
			if b, err = os.ReadFile(from); err != nil {
				t.Fatal(err)
			}
		}
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"yoi", "yoi-runtimed", "yoi-helper", "yoi-backend"} {
		put("", "usr/bin/"+p, 0o755)
	}
	put("", "bin/kill", 0o755)
	args := []string{"verify", "--man=no", "--root=" + root}
	for _, u := range units(t, "service", "socket", "timer", "slice") {
		to := "usr/lib/systemd/system/" + filepath.Base(u)
		put(u, to, 0o644)
		args = append(args, filepath.Join(root, to))
	}
	for _, u := range []string{"sockets.target", "timers.target", "basic.target", "sysinit.target", "shutdown.target", "slices.target", "multi-user.target", "local-fs.target", "network.target"} {
		put("/usr/lib/systemd/system/"+u, "usr/lib/systemd/system/"+u, 0o644)
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "yoi") {
			t.Errorf("%s", strings.TrimSpace(line))
		}
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestExposure holds what `systemd-analyze security` says. The helper's is what
// making sandboxes takes: see the notes in its unit.
func TestExposure(t *testing.T) {
	for unit, most := range map[string]string{"yoi-runtimed": "15", "yoi-helper": "58", "yoi-gc": "29", "yoi-backend": "10"} {
		out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+most, dir+"/"+unit+".service").CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
}

// TestWorkersInheritNothing: what a unit's seccomp filters and limits forbid the
// helper, they forbid every Worker.
func TestWorkersInheritNothing(t *testing.T) {
	b, err := os.ReadFile(dir + "/yoi-helper.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		key, _, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		switch key {
		case "MemoryDenyWriteExecute", "LockPersonality", "RestrictAddressFamilies", "IPAddressDeny", "RestrictSUIDSGID", "OOMScoreAdjust", "Nice",
			"ProtectKernelTunables", "ProtectKernelLogs", "ProtectControlGroups", "ProtectProc", "ProcSubset", "ProtectHostname",
			"RestrictNamespaces", "PrivateDevices", "PrivateUsers":
			t.Errorf("the helper's unit has %s", strings.TrimSpace(line))
		}
	}
	// systemd 252 answers openat2 with ENOSYS then: its flags cannot be looked at.
	if b, err = os.ReadFile(dir + "/yoi-runtimed.service"); err != nil || strings.Contains(string(b), "\nRestrictSUIDSGID=") {
		t.Errorf("the daemon's unit hides openat2: %v", err)
	}
}
