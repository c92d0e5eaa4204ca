package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// hierarchy is one mount of control groups, or of the tmpfs that holds them.
type hierarchy struct{ Point, Type, Options string }

// hierarchies reads what this machine has below /sys/fs/cgroup.
func hierarchies() ([]hierarchy, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var hs []hierarchy
	for line := range strings.Lines(string(b)) {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 5 || len(r) < 3 || !strings.HasPrefix(l[4]+"/", "/sys/fs/cgroup/") {
			continue
		}
		if slices.Contains([]string{"tmpfs", "cgroup", "cgroup2"}, r[0]) {
			hs = append(hs, hierarchy{l[4], r[0], strings.TrimPrefix(r[2], "rw,")})
		}
	}
	if len(hs) == 0 {
		return nil, errors.New("no control groups are mounted on /sys/fs/cgroup")
	}
	return hs, nil
}

// own is this process' group in a hierarchy (cgroups(7), /proc/pid/cgroup).
func (h hierarchy) own() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && f[1] == strings.TrimSuffix(h.Options, ",xattr") {
			return f[2], nil
		}
	}
	return "/", nil
}

// makeGroups makes the machine's group in each hierarchy: below our own in v1, below
// the root in v2, where no group may hold both processes and controlled children.
func makeGroups(hs []hierarchy) (dirs []string, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, removeGroups(dirs))
		}
	}()
	for _, h := range hs {
		parent := "/"
		switch h.Type {
		case "tmpfs":
			continue
		case "cgroup":
			if parent, err = h.own(); err != nil {
				return dirs, err
			}
		}
		dir := filepath.Join(h.Point, parent, fmt.Sprintf("%s-host%d", testenv.RunID(), len(dirs)))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return dirs, err
		}
		dirs = append(dirs, dir)
		if h.Type != "cgroup" {
			continue
		}
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new group
			v, err := os.ReadFile(filepath.Join(dir, "..", f))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err := errors.Join(err, os.WriteFile(filepath.Join(dir, f), bytes.TrimSpace(v), 0o644)); err != nil {
				return dirs, err
			}
		}
	}
	return dirs, nil
}

// removeGroups takes the groups away with all that the manager made below them. The
// processes are gone, but their groups notice it a moment later.
func removeGroups(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		err := removeGroup(dir)
		for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); err = removeGroup(dir) {
			time.Sleep(10 * time.Millisecond)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeGroup(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}
