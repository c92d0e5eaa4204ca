package ledger

import (
	"context"
	"errors"
	"os"
)

var errStub = errors.New("stub")

type Ledger struct{}

// OpenDir opens (and with create makes, durably) the directory <root>/ledger.
func OpenDir(path string, create bool) (*os.File, error) { return nil, errStub }

// Open claims a free stream or makes one.
func Open(ctx context.Context, o Options) (*Ledger, error) { return nil, errStub }

func (l *Ledger) Stream() string                                                 { return "" }
func (l *Ledger) Intend(ctx context.Context, rs ...Resource) error               { return errStub }
func (l *Ledger) Done(id string, ident Identity) error                           { return errStub }
func (l *Ledger) Release(ids ...string) error                                    { return errStub }
func (l *Ledger) Event(kind, owner string, fields map[string]string) error       { return errStub }
func (l *Ledger) Keep(ctx context.Context, owner string) error                   { return errStub }
func (l *Ledger) Unkeep(ctx context.Context, owner string) error                 { return errStub }
func (l *Ledger) Sync(ctx context.Context) error                                 { return errStub }
func (l *Ledger) Close() error                                                   { return errStub }
func Scan(ctx context.Context, dir *os.File, roles ...string) (*State, error)    { return nil, errStub }
func Verify(ctx context.Context, dir *os.File, roles ...string) (*Report, error) { return nil, errStub }
func Records(ctx context.Context, dir *os.File, yield func(Record) bool) error   { return errStub }
func RecoverLock(dir *os.File) (unlock func(), err error)                        { return nil, errStub }
