package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is where this process may make groups.
type Tree struct {
	// Version is 2 or 1; 0 means nowhere, and Reason says why.
	Version int
	// Controllers are those that groups can be limited by, in v2's names, sorted.
	Controllers []string
	Reason, Fix string
	// unified are the controllers of this process' group on v2, whoever may make groups
	// below it.
	unified []string

	// dirs are where groups are made, absolute: by v1's controller name, or under
	// "" on v2.
	dirs map[string]string
}

// v1 names controllers otherwise.
var toV1 = map[string]string{"cpu": "cpu", "io": "blkio", "memory": "memory", "pids": "pids"}

// hierarchy is one mounted cgroup file system.
type hierarchy struct {
	point, root string
	controllers []string // nil for v2
}

// Find looks at the mounted hierarchies and at this process' place in them. On v2
// it may move this process into a leaf of its delegated group, since a group with
// processes of its own cannot have limited children (cgroup-v2.rst, "No Internal
// Process Constraint"). So it comes before this process has children: they are
// born where it is.
func Find() (*Tree, error) {
	mounted, err := hierarchies("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := ownPaths("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	t := &Tree{dirs: make(map[string]string)}
	for _, h := range mounted {
		if h.controllers == nil {
			if err := t.useV2(h, own[""]); err != nil {
				return nil, err
			}
		}
	}
	if t.Version == 2 {
		return t, nil
	}
	reason, fix := t.Reason, t.Fix
	for v2, v1 := range toV1 {
		for _, h := range mounted {
			at, ok := below(h.root, own[v1])
			if !slices.Contains(h.controllers, v1) || !ok {
				continue
			}
			dir := path.Join(h.point, at)
			if unix.Access(dir, unix.W_OK) == nil {
				t.Version, t.dirs[v1] = 1, dir
				t.Controllers = append(t.Controllers, v2)
			}
		}
	}
	slices.Sort(t.Controllers)
	switch {
	case t.Version == 1:
		t.Reason, t.Fix = "", ""
	case reason != "":
		t.Reason, t.Fix = reason, fix
	default:
		t.Reason, t.Fix = "no control group hierarchy is mounted in which this process may make groups", "Run the helper as a service with Delegate=yes."
	}
	return t, nil
}

// Managed is what a service manager, which this process speaks to, can limit in groups
// that it makes itself. Nothing needs to be delegated for that; and a user's manager
// does not mark what it delegates (systemd 252).
func (t *Tree) Managed() *Tree {
	if len(t.unified) == 0 {
		return t
	}
	return &Tree{Version: 2, Controllers: slices.Sorted(slices.Values(t.unified))}
}

// Place tells where a process is on v2: the mount, and the directory below that.
func Place(pid int) (mount, dir string, err error) {
	mounted, err := hierarchies("/proc/self/mountinfo")
	if err != nil {
		return "", "", err
	}
	own, err := ownPaths("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return "", "", err
	}
	for _, h := range mounted {
		if at, ok := below(h.root, own[""]); h.controllers == nil && ok {
			return h.point, strings.TrimPrefix(at, "/"), nil
		}
	}
	return "", "", fs.ErrNotExist
}

// useV2 sets the tree up on v2 if groups with controllers can be made there.
func (t *Tree) useV2(h hierarchy, own string) error {
	at, ok := below(h.root, own)
	if !ok {
		t.Reason, t.Fix = "this process' control group is not in the mounted hierarchy", "Mount cgroup2 in this container."
		return nil
	}
	dir := path.Join(h.point, at)
	available, err := os.ReadFile(dir + "/cgroup.controllers")
	if errors.Is(err, fs.ErrNotExist) {
		t.Reason, t.Fix = "this process' control group is not in the mounted hierarchy", "Mount cgroup2 in this container."
		return nil
	}
	if err != nil {
		return err
	}
	var wanted []string
	for c := range strings.FieldsSeq(string(available)) {
		if _, ok := toV1[c]; ok {
			wanted = append(wanted, c)
		}
	}
	if len(wanted) == 0 {
		t.Reason, t.Fix = "the unified hierarchy has no controllers here", "Run the helper as a service with Delegate=yes, on a host with unified control groups."
		return nil
	}
	t.unified = wanted
	isRoot := at == "/" && h.root == "/"
	switch {
	case isRoot && !managed():
	case delegated(path.Dir(dir)): // DelegateSubgroup=, or our own leaf from before
		dir = path.Dir(dir)
	case delegated(dir):
		if err := moveSelf(dir); err != nil {
			return err
		}
	default:
		t.Reason, t.Fix = "this process' control group is not delegated to it", "Run the helper as a service with Delegate=yes, or under systemd-run -p Delegate=yes."
		return nil
	}
	for _, c := range wanted {
		if err := write(dir+"/cgroup.subtree_control", "+"+c); err != nil {
			continue // not for us to give; it is not listed then
		}
		t.Controllers = append(t.Controllers, c)
	}
	if len(t.Controllers) == 0 {
		t.Reason, t.Fix = "no controller can be enabled below this process' control group", "Run the helper as a service with Delegate=yes."
		return nil
	}
	slices.Sort(t.Controllers)
	t.Version, t.dirs[""] = 2, dir
	return nil
}

// leaf is where this process goes inside its delegated group.
const leaf = "yoi-self"

func moveSelf(dir string) error {
	if err := os.Mkdir(dir+"/"+leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return write(dir+"/"+leaf+"/cgroup.procs", "0")
}

// managed tells whether systemd is this host's manager of groups (sd_booted(3)).
func managed() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// delegated reads the mark that systemd puts on what it will not touch
// (systemd.io, "Control Group APIs and Delegation").
func delegated(dir string) bool {
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		b := make([]byte, 8)
		if n, err := unix.Lgetxattr(dir, name, b); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	return false
}

// below is where an absolute path of a hierarchy is in a mount of one of its
// directories.
func below(root, p string) (string, bool) {
	if p == "" {
		return "", false
	}
	if root == "/" {
		return p, true
	}
	rest, ok := strings.CutPrefix(p, root)
	if !ok || (rest != "" && rest[0] != '/') {
		return "", false
	}
	return path.Join("/", rest), true
}

// hierarchies reads mountinfo, proc_pid_mountinfo(5).
func hierarchies(file string) ([]hierarchy, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseMountinfo(b), nil
}

func parseMountinfo(b []byte) (out []hierarchy) {
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(kind) < 3 {
			continue
		}
		h := hierarchy{root: unescape(fields[3]), point: unescape(fields[4])}
		switch kind[0] {
		case "cgroup2":
		case "cgroup":
			h.controllers = strings.Split(kind[2], ",")
		default:
			continue
		}
		out = append(out, h)
	}
	return out
}

// unescape undoes mountinfo's octal escapes of space, tab, newline and backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// ownPaths reads /proc/self/cgroup, cgroups(7): controller to path, "" for v2.
func ownPaths(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseOwn(b), nil
}

func parseOwn(b []byte) map[string]string {
	own := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		for _, c := range strings.Split(parts[1], ",") {
			own[c] = filepath.Clean(parts[2])
		}
	}
	return own
}

// write puts a value into a control file, in one write as the kernel wants it.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s=%s: %w", path.Base(file), value, err)
	}
	return nil
}
