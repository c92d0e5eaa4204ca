package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

type object = map[string]any

// runcBundle writes the default sandbox as an OCI bundle and returns one run of
// it. The filter is a short list of refused calls, in runc's favour: it compiles
// a filter at every start.
func (s *station) runcBundle(id policy.AllocationID) func() {
	r := s.r
	dir := r.TempDir()
	rootfs := filepath.Join(dir, "rootfs")
	for _, d := range []string{"usr", "etc", "proc", "dev", "tmp", "home/worker", "scratch", "workspace", "run", "var"} {
		r.must(os.MkdirAll(filepath.Join(rootfs, d), 0o755))
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + d); err == nil {
			r.must(os.Symlink(to, filepath.Join(rootfs, d)))
		}
	}
	config, err := json.Marshal(s.runcConfig(id))
	r.must(err)
	r.must(os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644))
	state := filepath.Join(dir, "state")
	n := 0
	return func() {
		n++
		// The id is a cgroup's name too: with the run's, so that a leak is found.
		r.do("runc", "--root", state, "run", "-b", dir, fmt.Sprintf("%s-%d", testenv.RunID(), n))
	}
}

func (s *station) runcConfig(id policy.AllocationID) object {
	tmpfs := func(at, mode string) object {
		return object{"destination": at, "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev", "mode=" + mode}}
	}
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		tmpfs("/tmp", "1777"), tmpfs("/home/worker", "700"),
	}
	binds := append(s.binds(id), bind{"/usr", "/usr", true})
	for _, p := range etcPaths() {
		binds = append(binds, bind{p, p, true})
	}
	for _, b := range binds {
		options := []string{"rbind", "nosuid", "nodev"}
		if b.readOnly {
			options = append(options, "ro")
		}
		mounts = append(mounts, object{"destination": b.to, "type": "bind", "source": b.from, "options": options})
	}
	var namespaces []object
	for _, n := range []string{"pid", "network", "ipc", "uts", "mount", "cgroup"} {
		namespaces = append(namespaces, object{"type": n})
	}
	refused := []string{"mount", "umount2", "pivot_root", "ptrace", "bpf", "keyctl", "add_key", "unshare", "setns", "open_by_handle_at", "userfaultfd", "perf_event_open"}
	return object{
		"ociVersion": "1.0.2", "hostname": "worker",
		"process": object{
			"terminal": false, "user": object{"uid": 1000, "gid": 1000}, "args": []string{"/bin/true"}, "env": []string{"PATH=/usr/bin:/bin"},
			"cwd": "/workspace/" + string(repoID), "noNewPrivileges": true,
		},
		"root": object{"path": "rootfs", "readonly": true}, "mounts": mounts,
		"linux": object{
			"namespaces":    namespaces,
			"maskedPaths":   []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"},
			"readonlyPaths": []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"},
			"seccomp": object{
				"defaultAction": "SCMP_ACT_ALLOW", "architectures": []string{"SCMP_ARCH_X86_64"},
				"syscalls": []object{{"names": refused, "action": "SCMP_ACT_ERRNO"}},
			},
		},
	}
}
