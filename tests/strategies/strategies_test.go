package strategies

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/cow/cowtest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// when is the time of every commit, and so of every file.
var when = time.Unix(1_700_000_000, 0)

func TestSuite(t *testing.T) {
	for _, fs := range rig.FileSystems() {
		t.Run(fs, func(t *testing.T) {
			for who, uid := range map[string]int{"root": 0, "user": rig.Ordinary} {
				t.Run(who, func(t *testing.T) {
					if uid == 0 {
						suite(t, rig.NewPlace(t, fs, 0), rig.Program(t, "yoi"))
						return
					}
					testenv.AsUserWith(t, uid, func() []string {
						return []string{"PLACE=" + rig.NewPlace(t, fs, uid).Dir, "PROGRAM=" + rig.Program(t, "yoi")}
					}, func(t *testing.T) {
						// Everything here is the user's own already: no other uid is asked for.
						suite(t, rig.Place{FS: fs, Dir: os.Getenv("PLACE")}, os.Getenv("PROGRAM"))
					})
				})
			}
		})
	}
}

func suite(t *testing.T, p rig.Place, program string) {
	unix.Umask(0o022)
	y := rig.Yoi{Program: program, Root: filepath.Join(p.Dir, "rt"), Dir: p.Dir, Home: p.Dir}
	rig.ConfigureOwn(t, y.Root, rig.Cloning)
	for _, s := range []policy.StrategyName{policy.StrategyGitWorktree, policy.StrategyGitSparse, policy.StrategyExternal, policy.StrategyRemoteSnapshot} {
		t.Run(string(s), func(t *testing.T) {
			m := &maker{y: y, dir: p.Dir, strategy: s, targets: map[string]policy.AllocationID{}}
			cowtest.Common(t, m)
			y.OK(t, "gc")
			rig.Clean(t, y.Root)
		})
	}
}

// maker makes workspaces of repositories by `yoi ws create`.
type maker struct {
	y        rig.Yoi
	dir      string
	strategy policy.StrategyName
	targets  map[string]policy.AllocationID
	mounts   []string
}

func (m *maker) Name() policy.StrategyName { return m.strategy }

func (m *maker) source(name string) string { return filepath.Join(m.dir, name+"-"+string(m.strategy)) }

// Source makes a repository. What plant does to the working tree is committed.
func (m *maker) Source(t *testing.T, name string, plant func(dir string)) {
	t.Helper()
	dir := m.source(name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	plant(dir)
	if special := filepath.Join(dir, "special"); exists(special) { // or git would have nothing of it
		if err := os.WriteFile(filepath.Join(special, "kept"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	at := fmt.Sprintf("%d +0000", when.Unix())
	// The git directory lies beside the tree, which is listed as it is.
	rig.Command(t, "sh", "-ec", `export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_DIR="$1.git" GIT_WORK_TREE="$1" GIT_AUTHOR_DATE="$2" GIT_COMMITTER_DATE="$2"
git init -q; git config core.bare false; git config user.email a@b; git config user.name a; git config core.worktree "$1"
git add -A; git commit -q --allow-empty -m all`, "sh", dir, at)
	m.y.OK(t, "repo", "add", "--id", filepath.Base(dir), dir+".git")
	if m.strategy != policy.StrategyRemoteSnapshot {
		return
	}
	store := dir + "-store"
	if err := os.Mkdir(store, 0o755); err != nil {
		t.Fatal(err)
	}
	var s struct {
		Digest string `json:"digest"`
	}
	m.y.Run(t, "snapshot", "export", filepath.Base(dir), "--to", store, "--json").Want(t, 0).JSON(t, &s)
	if err := os.WriteFile(store+".digest", []byte(s.Digest), 0o644); err != nil {
		t.Fatal(err)
	}
	m.y.OK(t, "repo", "add", "snapshot+file://"+store)
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// Make makes a workspace. Of git_sparse the scope is every directory.
func (m *maker) Make(t *testing.T, source, target string) (string, cow.Result) {
	t.Helper()
	dir := m.source(source)
	repo, args := filepath.Base(dir), []string{"ws", "create", "--json", "--strategy", string(m.strategy)}
	switch m.strategy {
	case policy.StrategyGitSparse:
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() && e.Name() != "empty" { // which git does not have
				args = append(args, "--scope", e.Name())
			}
		}
	case policy.StrategyRemoteSnapshot:
		digest, err := os.ReadFile(dir + "-store.digest")
		if err != nil {
			t.Fatal(err)
		}
		repo += "-store"
		args = append(args, "--rev", "snapshot:"+string(digest))
	}
	var ws runtime.Workspace
	m.y.Run(t, append(args, repo)...).Want(t, 0).JSON(t, &ws)
	if ws.Strategy != m.strategy {
		t.Errorf("made by %s", ws.Strategy)
	}
	m.targets[target] = ws.ID
	top := filepath.Join(m.y.Root, "execution-workspaces", string(ws.ID))
	path, res := filepath.Join(top, "root", repo), cow.Result{Warnings: ws.Diagnostics}
	if built, _ := filepath.Glob(filepath.Join(m.y.Root, "repository-cache/git", repo, "trees/*")); len(built) > 0 && strings.HasPrefix(string(m.strategy), "git_") {
		t.Errorf("%s takes nothing of a tree in the cache, and has one built: %v", m.strategy, built)
	}
	layers := filepath.Join(top, "mounts", repo)
	if !exists(filepath.Join(layers, cow.UpperName)) {
		return path, res
	}
	// What remote_snapshot made is the cache's tree; auto went on by overlay.
	trees, err := filepath.Glob(filepath.Join(m.y.Root, "repository-cache/git", repo, "trees", "*.json"))
	if err != nil || len(trees) != 1 {
		t.Fatal(trees, err)
	}
	lower := strings.TrimSuffix(trees[0], ".json")
	if os.Geteuid() != 0 {
		cowtest.Compare(t, m.Arrives(cowtest.List(t, dir)), m.List(t, lower))
		return "", res
	}
	opts := fmt.Sprintf("userxattr,lowerdir=%s,upperdir=%s,workdir=%s", lower, filepath.Join(layers, cow.UpperName), filepath.Join(layers, cow.WorkName))
	if err := unix.Mount("overlay", path, "overlay", 0, opts); err != nil {
		t.Fatal(err)
	}
	m.mounts = append(m.mounts, path)
	return path, res
}

func (m *maker) Remove(t *testing.T, name string) {
	t.Helper()
	for _, path := range m.mounts {
		_ = unix.Unmount(path, unix.UMOUNT_NOFOLLOW) // EINVAL: not mounted any more
	}
	if id, ok := m.targets[name]; ok {
		m.y.OK(t, "ws", "rm", "--discard", string(id))
		if exists(filepath.Join(m.y.Root, "execution-workspaces", string(id))) {
			t.Errorf("%s is still there", name)
		}
		return
	}
	for _, part := range []string{"", "-store"} {
		if exists(m.source(name) + part) {
			m.y.OK(t, "repo", "rm", filepath.Base(m.source(name)+part))
		}
	}
}

// described is a line of a listing: mode, owner, time, and what else there is.
var described = regexp.MustCompile(`^(\d+) \d+:\d+ \d+\.\d+(.*)$`)

// extra is what git has no word for.
var extra = regexp.MustCompile(` sparse| (user|security|system|trusted)\.\S+| same as .*`)

// Arrives is what git records of a listing.
func (m *maker) Arrives(source cowtest.Listing) cowtest.Listing {
	out := cowtest.Listing{}
	for rel, s := range source {
		f := described.FindStringSubmatch(s)
		mode, _ := strconv.ParseUint(f[1], 8, 32)
		switch mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if !hasFiles(source, rel) {
				continue
			}
			mode = unix.S_IFDIR | 0o755
		case unix.S_IFREG:
			if mode = unix.S_IFREG | 0o644 | mode&0o100; mode&0o100 != 0 {
				mode |= 0o111
			}
		case unix.S_IFLNK:
		default:
			continue
		}
		out[rel] = fmt.Sprintf("%o %d:%d %d.%09d%s", mode, os.Geteuid(), os.Getegid(), when.Unix(), 0, extra.ReplaceAllString(f[2], ""))
	}
	return out
}

// hasFiles reports whether there is anything but directories below a directory.
func hasFiles(l cowtest.Listing, dir string) bool {
	for rel, s := range l {
		if !strings.HasPrefix(s, "4") && (dir == "" || strings.HasPrefix(rel, dir+"/")) {
			return true
		}
	}
	return false
}

// List leaves the private git directory out, and holes, which git does not keep and
// a file system may.
func (m *maker) List(t *testing.T, path string) cowtest.Listing {
	t.Helper()
	out := cowtest.Listing{}
	for rel, s := range cowtest.List(t, path) {
		if rel != ".git" && !strings.HasPrefix(rel, ".git/") {
			out[rel] = strings.Replace(s, " sparse", "", 1)
		}
	}
	if slices.Contains(m.mounts, path) { // the upper directory got its .git just now
		out[""] = regexp.MustCompile(`\d+\.\d+`).ReplaceAllString(out[""], fmt.Sprintf("%d.%09d", when.Unix(), 0))
	}
	return out
}
