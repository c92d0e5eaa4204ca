package gitcache

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

// ParseSource reads a local path, relative to cwd, or a file, https or ssh URL
// (scp's user@host:path counts as ssh). A path inside a working tree stands for
// its top, as for git itself.
func ParseSource(s, cwd string) (Source, error) {
	const op = "gitcache.source"
	bad := func(why string) (Source, error) {
		return Source{}, policy.Errorf(policy.CodeSourceInvalid, op, "the source %s", why)
	}
	switch {
	case s == "":
		return bad("is empty")
	case len(s) > 4096 || strings.ContainsAny(s, "\x00\n\r"):
		return bad("is too long, or holds a NUL or a line break")
	}
	if location, ok := strings.CutPrefix(s, snapshotScheme); ok {
		l, err := snapshot.ParseLocation(location)
		if err != nil {
			return Source{}, err
		}
		return Source{ID: policy.RepositoryIDFor(l.Name()), URL: snapshotScheme + l.String()}, nil
	}
	if strings.Contains(s, "://") {
		return parseURL(s)
	}
	if scheme, _, ok := strings.Cut(s, "::"); ok && !strings.Contains(scheme, "/") { // ext::, a remote helper
		return Source{}, policy.Errorf(policy.CodeProtocolRefused, op, "the protocol %q is not allowed", policy.Printable(scheme))
	}
	if host, path, ok := strings.Cut(s, ":"); ok && !strings.Contains(host, "/") && strings.Contains(host, "@") {
		if !strings.HasPrefix(path, "/") {
			path = "/~/" + path
		}
		return parseURL("ssh://" + host + path)
	}
	if !filepath.IsAbs(s) {
		s = filepath.Join(cwd, s)
	}
	return localSource(s)
}

func parseURL(s string) (Source, error) {
	const op = "gitcache.source"
	u, err := url.Parse(s)
	if err != nil { // the error repeats the URL with its password
		return Source{}, policy.Errorf(policy.CodeSourceInvalid, op, "the source is not a well-formed URL")
	}
	switch u.Scheme {
	case "file":
		if (u.Host != "" && u.Host != "localhost") || !filepath.IsAbs(u.Path) || u.RawQuery != "" || u.Fragment != "" {
			return Source{}, policy.Errorf(policy.CodeSourceInvalid, op, "a file URL names an absolute path on this host")
		}
		u.Path = filepath.Clean(u.Path)
	case "https", "ssh":
		if u.Hostname() == "" || strings.HasPrefix(u.Hostname(), "-") || strings.HasPrefix(u.User.Username(), "-") || u.Path == "" {
			return Source{}, policy.Errorf(policy.CodeSourceInvalid, op, "the source URL lacks a host or a path")
		}
	default:
		return Source{}, policy.Errorf(policy.CodeProtocolRefused, op, "the protocol %q is not allowed", policy.Printable(u.Scheme))
	}
	return Source{ID: policy.RepositoryIDFor(u.Path), URL: u.String()}, nil
}

// localSource walks up from path to the repository that it is in.
func localSource(path string) (Source, error) {
	const op = "gitcache.source"
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Source{}, unreadable(op, err)
	}
	for dir := real; ; dir = filepath.Dir(dir) {
		d, err := discover(dir)
		if err == nil {
			top := d.top
			if top == "" {
				top = d.gitDir
			}
			return Source{ID: policy.RepositoryIDFor(top), URL: top}, nil
		}
		if !errors.Is(err, policy.CodeSourceNotRepository) {
			return Source{}, err
		}
		if dir == "/" {
			return Source{}, policy.Errorf(policy.CodeSourceNotRepository, op, "the source is not inside a git repository")
		}
	}
}

func unreadable(op string, err error) error {
	why := "cannot be read"
	if errors.Is(err, fs.ErrNotExist) {
		why = "does not exist"
	} else if errors.Is(err, fs.ErrPermission) {
		why = "may not be read by this user"
	}
	return policy.Errorf(policy.CodeSourceUnreadable, op, "the source %s", why).Because(err)
}

// snapshotScheme is what the location of a snapshot store has in front, where it
// stands for a repository.
const snapshotScheme = "snapshot+"

func (s Source) isSnapshot() bool { return strings.HasPrefix(s.URL, snapshotScheme) }

// isLocal says whether the source is a path: its working tree can be looked at.
func (s Source) isLocal() bool { return filepath.IsAbs(s.URL) }

// Redacted is the source without its password.
func (s Source) Redacted() string {
	if s.isLocal() {
		return s.URL
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

func (s Source) password() string {
	if u, err := url.Parse(s.URL); err == nil && u.User != nil {
		pw, _ := u.User.Password()
		return pw
	}
	return ""
}

func (s Source) protocol() string {
	if s.isLocal() {
		return "file"
	}
	p, _, _ := strings.Cut(s.URL, "://")
	return p
}

// sourceDir is where a local repository keeps its parts; see
// gitrepository-layout(5) for the two files that point elsewhere.
type sourceDir struct {
	top       string // of the working tree; "" for a bare repository
	gitDir    string // HEAD, index
	commonDir string // refs, objects, config
	config    sourceConfig
}

// discover finds the parts of the repository at dir itself, not above it,
// reading small regular files only: a FIFO named .git must not hang us.
func discover(dir string) (*sourceDir, error) {
	const op = "gitcache.source"
	d := &sourceDir{top: dir, gitDir: filepath.Join(dir, ".git")}
	st, err := os.Stat(d.gitDir)
	switch {
	case err == nil && st.IsDir():
	case err == nil:
		if d.gitDir, err = readPointer(d.gitDir, "gitdir: ", dir); err != nil {
			return nil, policy.Errorf(policy.CodeSourceNotRepository, op, "the source's .git file does not lead to a repository").Because(err)
		}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		if _, err := os.Stat(dir); err != nil {
			return nil, unreadable(op, err)
		}
		d.gitDir, d.top = dir, ""
		if filepath.Base(dir) == ".git" {
			d.top = filepath.Dir(dir)
		}
	default:
		return nil, unreadable(op, err)
	}
	d.commonDir = d.gitDir
	if common, err := readPointer(filepath.Join(d.gitDir, "commondir"), "", d.gitDir); err == nil {
		d.commonDir = common
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	text, err := readSmall(filepath.Join(d.commonDir, "config"), 1<<20)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, unreadable(op, err)
	}
	d.config = parseSourceConfig(text)
	if d.gitDir == d.commonDir && d.config.bare {
		d.top = ""
	}
	return d, nil
}

// check applies git's own test for a git directory.
func (d *sourceDir) check() error {
	const op = "gitcache.source"
	_, err := os.Lstat(filepath.Join(d.gitDir, "HEAD"))
	for _, sub := range []string{"objects", "refs"} {
		if err == nil {
			var st fs.FileInfo
			if st, err = os.Stat(filepath.Join(d.commonDir, sub)); err == nil && !st.IsDir() {
				err = unix.ENOTDIR
			}
		}
	}
	for _, file := range []string{filepath.Join(d.gitDir, "HEAD"), filepath.Join(d.gitDir, "index"), filepath.Join(d.commonDir, "packed-refs"), filepath.Join(d.commonDir, "shallow")} {
		if st, statErr := os.Stat(file); err == nil && statErr == nil && !st.Mode().IsRegular() {
			err = unix.ENOTDIR // git would wait for a FIFO's writer
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return policy.Errorf(policy.CodeSourceNotRepository, op, "the source is not a git repository").Because(err)
	}
	return unreadable(op, err)
}

// readPointer reads a one-line file that names a directory relative to base.
func readPointer(path, prefix, base string) (string, error) {
	b, err := readSmall(path, 8192)
	if err != nil {
		return "", err
	}
	s, ok := strings.CutPrefix(strings.TrimRight(string(b), "\r\n"), prefix)
	if !ok || s == "" || strings.ContainsAny(s, "\x00\n") {
		return "", errors.New("malformed pointer file")
	}
	if !filepath.IsAbs(s) {
		s = filepath.Join(base, s)
	}
	return filepath.Clean(s), nil
}

// readSmall reads a regular file of at most max bytes, without waiting for a
// FIFO's writer.
func readSmall(path string, max int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readRegular(f, max)
}
