package toolroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// host is the system whose programs are looked at: "" or, in tests, a directory in
// place of "/".
type host struct{ prefix string }

// systemDirs are where programs and what they load are, canonically.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"}

// searchPath is the sandbox's own; no caller's PATH has a say.
var searchPath = []string{"/usr/local/go/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// errOutside is a path that leads out of the system directories.
var errOutside = errors.New("leads out of the system's directories")

func inside(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return p == d || strings.HasPrefix(p, d+"/") })
}

// maxLinks is the kernel's own bound, path_resolution(7).
const maxLinks = 40

// resolve follows p from the root by itself, as the kernel would inside a root with
// the same links, and returns the canonical path and the links on the way.
func (h host) resolve(p string) (real string, links []Link, info fs.FileInfo, err error) {
	rest := strings.Split(strings.Trim(p, "/"), "/")
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if real = path.Dir("/" + real); real == "/" {
				real = ""
			}
			continue
		}
		at := real + "/" + name
		if info, err = os.Lstat(h.prefix + at); err != nil {
			return "", nil, nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			real = at
			continue
		}
		to, err := os.Readlink(h.prefix + at)
		if err != nil {
			return "", nil, nil, err
		}
		if len(links) == maxLinks {
			return "", nil, nil, &fs.PathError{Op: "open", Path: p, Err: unix.ELOOP}
		}
		// Debian's alternatives are links in /etc to what is meant.
		if !inside(at, systemDirs) && !inside(at, []string{"/etc/alternatives"}) {
			return "", nil, nil, &fs.PathError{Op: "open", Path: p, Err: errOutside}
		}
		links = append(links, Link{at, to})
		rest = append(strings.Split(to, "/"), rest...)
		if strings.HasPrefix(to, "/") {
			real = ""
		}
	}
	if real == "" {
		return "", nil, nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
	}
	if info, err = os.Lstat(h.prefix + real); err != nil {
		return "", nil, nil, err
	}
	return real, links, info, nil
}

// glob lists the host's paths that match, sorted.
func (h host) glob(pattern string) []string {
	found, err := filepath.Glob(h.prefix + pattern)
	if err != nil { // the pattern is malformed
		return nil
	}
	for i, f := range found {
		found[i] = strings.TrimPrefix(f, h.prefix)
	}
	return found
}

// open opens a file for reading without waiting for anything.
func (h host) open(p string) (*os.File, error) {
	f, err := os.OpenFile(h.prefix+p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: p, Err: fmt.Errorf("not a regular file (%w)", errors.Join(fs.ErrInvalid, err))}
	}
	return f, nil
}

// maxConf bounds what is read of the dynamic linker's configuration.
const maxConf = 1 << 20

// libraryDirs are where the dynamic linker looks, in its order: those that
// ldconfig(8) was told of, and its own.
func (h host) libraryDirs() []string {
	dirs := h.conf("/etc/ld.so.conf", 0)
	dirs = append(dirs, h.glob("/lib/*-linux-gnu")...)
	dirs = append(dirs, h.glob("/usr/lib/*-linux-gnu")...)
	dirs = append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	var out []string
	for _, d := range dirs {
		if d = path.Clean(d); path.IsAbs(d) && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

func (h host) conf(name string, depth int) (dirs []string) {
	st, err := os.Stat(h.prefix + name)
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxConf || depth > 8 {
		return nil
	}
	b, err := os.ReadFile(h.prefix + name)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		if pattern, ok := strings.CutPrefix(strings.TrimSpace(line), "include"); ok && strings.TrimSpace(pattern) != "" {
			pattern = strings.TrimSpace(pattern)
			if !path.IsAbs(pattern) {
				pattern = path.Join(path.Dir(name), pattern)
			}
			for _, f := range h.glob(pattern) {
				dirs = append(dirs, h.conf(f, depth+1)...)
			}
			continue
		}
		dirs = append(dirs, strings.FieldsFunc(line, func(r rune) bool { return r == ':' || r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' })...)
	}
	return dirs
}
