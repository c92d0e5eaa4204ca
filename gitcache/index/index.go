package index

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// Stat is the stat data of an entry, truncated to 32 bits as git does.
type Stat struct {
	CtimeSec, CtimeNsec uint32
	MtimeSec, MtimeNsec uint32
	Dev, Ino            uint32
	UID, GID            uint32
	Size                uint32
}

// Entry is one file, symbolic link or submodule of an index.
type Entry struct {
	Path         []byte // aliases the index's bytes
	OID          []byte // aliases the index's bytes
	Mode         uint32
	Stage        int
	SkipWorktree bool
	Stat         Stat
}

// Index is a parsed index file.
type Index struct{ buf []byte }

func FromStatx(st *unix.Statx_t) Stat                 { panic("x") }
func Parse(b []byte, oidSize int) (*Index, error)     { panic("x") }
func (x *Index) Len() int                             { panic("x") }
func (x *Index) Entry(i int) Entry                    { panic("x") }
func (x *Index) SetStat(i int, s Stat)                { panic("x") }
func (x *Index) Patch(f func(Entry) (Stat, bool)) int { panic("x") }
func (x *Index) Bytes() []byte                        { panic("x") }

// PatchTree fstatats every entry beneath tree (never following a symbolic link).
func (x *Index) PatchTree(ctx context.Context, tree *os.File, uid, gid uint32) error { panic("x") }
