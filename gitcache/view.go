package gitcache

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// A view is a git directory of ours that stands for a source's: HEAD is copied,
// refs, objects, packed-refs, logs and shallow are symbolic links into the
// source, and its index comes by GIT_INDEX_FILE. The configuration is written by us from a few scalars of the source's, so no
// command that the source's config, hooks or attributes name can be found.
//
// It is kept between uses: when the source stays put, nothing is written.
type view struct {
	dir string
	src *sourceDir
}

func (r *repo) openView(d *sourceDir) (*view, error) {
	v := &view{dir: r.path("view"), src: d}
	for _, sub := range []string{"info", "logs"} {
		if err := os.MkdirAll(filepath.Join(v.dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	head, err := readHead(filepath.Join(d.gitDir, "HEAD"))
	if err != nil {
		return nil, err
	}
	links := []struct{ name, target string }{
		{"refs", filepath.Join(d.commonDir, "refs")},
		{"objects", filepath.Join(d.commonDir, "objects")},
		{"packed-refs", filepath.Join(d.commonDir, "packed-refs")},
		{"shallow", filepath.Join(d.commonDir, "shallow")},
		{"info/exclude", filepath.Join(d.commonDir, "info/exclude")},
		{"info/attributes", filepath.Join(d.commonDir, "info/attributes")},
		{"info/sparse-checkout", filepath.Join(d.gitDir, "info/sparse-checkout")},
		{"logs/refs", filepath.Join(d.commonDir, "logs/refs")},
		{"logs/HEAD", filepath.Join(d.gitDir, "logs/HEAD")},
		{"ORIG_HEAD", filepath.Join(d.gitDir, "ORIG_HEAD")},
		{"FETCH_HEAD", filepath.Join(d.gitDir, "FETCH_HEAD")},
	}
	for _, l := range links {
		if err := ensureLink(filepath.Join(v.dir, l.name), l.target); err != nil {
			return nil, err
		}
	}
	if err := v.linkSharedIndex(); err != nil {
		return nil, err
	}
	if err := ensureFile(filepath.Join(v.dir, "config"), d.config.viewText()); err != nil {
		return nil, err
	}
	return v, ensureFile(filepath.Join(v.dir, "HEAD"), head)
}

// linkSharedIndex follows a split index, whose base lies beside the index.
func (v *view) linkSharedIndex() error {
	shared, err := filepath.Glob(filepath.Join(globEscape(v.src.gitDir), "sharedindex.*"))
	for _, s := range shared {
		err = errors.Join(err, ensureLink(filepath.Join(v.dir, filepath.Base(s)), s))
	}
	return err
}

func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

func (c sourceConfig) viewText() []byte {
	var b bytes.Buffer
	version := 0
	if c.sha256 {
		version = 1
	}
	fmt.Fprintf(&b, "[core]\n\trepositoryformatversion = %d\n\tbare = false\n", version)
	for _, kv := range [][2]string{
		{"filemode", c.fileMode}, {"ignorecase", c.ignoreCase}, {"autocrlf", c.autoCRLF}, {"eol", c.eol},
		{"trustctime", c.trustCtime}, {"checkstat", c.checkStat},
	} {
		if kv[1] != "" {
			fmt.Fprintf(&b, "\t%s = %s\n", kv[0], kv[1])
		}
	}
	if c.sha256 {
		b.WriteString("[extensions]\n\tobjectformat = sha256\n")
	}
	return b.Bytes()
}

// readHead reads HEAD, which in old repositories is a symbolic link to the ref.
func readHead(path string) ([]byte, error) {
	if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, "refs/") {
		return []byte("ref: " + target + "\n"), nil
	}
	return readSmall(path, 4096)
}

// ensureLink is for concurrent callers: whoever returns finds the link there.
func ensureLink(path, target string) error {
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	err := os.Symlink(target, path)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err
	}
	tmp := path + ".tmp-" + policy.NewID("")
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return nil
}

func ensureFile(path string, data []byte) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return writeFile(path, data, 0o600, false)
}

// command is a read-only git command on the source.
func (v *view) command(args ...string) command {
	env := []string{
		"GIT_DIR=" + v.dir,
		"GIT_INDEX_FILE=" + filepath.Join(v.src.gitDir, "index"),
	}
	if v.src.top != "" {
		env = append(env, "GIT_WORK_TREE="+v.src.top)
	}
	// The global ignore file is only patterns, and without it every user's
	// editor droppings would make the source dirty.
	if x := userExcludes(); x != "" {
		args = append([]string{"-c", "core.excludesFile=" + x}, args...)
	}
	return command{args: args, env: env}
}

func userExcludes() string {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "/dev/null"
		}
		dir = filepath.Join(home, ".config")
	}
	p := filepath.Join(dir, "git/ignore")
	if st, err := os.Stat(p); err != nil || !st.Mode().IsRegular() || unix.Access(p, unix.R_OK) != nil {
		return "/dev/null"
	}
	return p
}
