package toolroot

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Cache remembers closures, so that a launch pays for a stat of each file instead of
// reading them. The zero value is ready, and remembers as long as the process lives.
type Cache struct {
	// Load and Store keep what is remembered for other processes. What Load returns
	// decides which files of the system's a sandbox has: it must come from where
	// only the caller's own user can write. May be nil.
	Load  func() ([]byte, error)
	Store func([]byte) error

	mu     sync.Mutex
	loaded bool
	closed map[string]*Closure
}

// maxCached is more sets of tools than one host's policies have.
const maxCached = 16

// MaxStored is above what that many take when they are stored.
const MaxStored = 8 << 20

// Get is Resolve, once for each set of tools until a file of it changes.
func (c *Cache) Get(tools []string) (*Closure, error) {
	key := keyOf(tools)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.load()
	if got := c.closed[key]; got != nil && got.current() {
		return got, nil
	}
	got, err := Resolve(tools)
	if err != nil {
		return nil, err
	}
	if len(c.closed) >= maxCached {
		clear(c.closed)
	}
	c.closed[key] = got
	if c.Store != nil {
		if b, err := json.Marshal(c.closed); err == nil && len(b) <= MaxStored {
			_ = c.Store(b) // the next process reads the files again
		}
	}
	return got, nil
}

func (c *Cache) load() {
	if c.loaded {
		return
	}
	c.loaded, c.closed = true, make(map[string]*Closure)
	if c.Load == nil {
		return
	}
	b, err := c.Load()
	if err != nil || json.Unmarshal(b, &c.closed) != nil || c.closed == nil {
		c.closed = make(map[string]*Closure)
	}
}

// tableDigest tells the tables of two versions of the program apart.
var tableDigest = sync.OnceValue(func() string {
	sum := sha256.Sum256(fmt.Append(nil, "1", table, groups, always, searchPath, systemDirs))
	return policy.FormatDigest(sum[:])
})

func keyOf(tools []string) string {
	return strings.Join(slices.Sorted(slices.Values(tools)), "\x00") + "\x00" + tableDigest()
}

// stamp is what tells that a path is still what it was. ctime is the kernel's own:
// whoever puts a file's times back cannot set it.
type stamp struct {
	Path     string `json:"p"`
	Device   uint64 `json:"d,omitempty"`
	Inode    uint64 `json:"i,omitempty"` // 0 for what does not exist
	Mode     uint32 `json:"m,omitempty"`
	Size     int64  `json:"s,omitempty"`
	Seconds  int64  `json:"c,omitempty"`
	Fraction int64  `json:"n,omitempty"`
}

func stampOf(p string) (stamp, error) {
	s := stamp{Path: p}
	info, err := os.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return s, fs.ErrInvalid
	}
	s.Device, s.Inode, s.Mode, s.Size = st.Dev, st.Ino, st.Mode, st.Size
	s.Seconds, s.Fraction = st.Ctim.Sec, st.Ctim.Nsec
	return s, nil
}

// current tells whether everything that was looked at is what it was.
func (c *Closure) current() bool {
	for _, s := range c.Stamps {
		if now, err := stampOf(s.Path); err != nil || now != s {
			return false
		}
	}
	return len(c.Stamps) > 0
}
