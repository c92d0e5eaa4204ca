package store

import (
	"context"
	"io"
	"os"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

// Item is one archive of a listing.
type Item struct {
	Digest   string    `json:"digest"`
	Bytes    int64     `json:"bytes"` // as it lies in the store
	StoredAt time.Time `json:"stored_at,omitzero"`
}

// Store is a place for archives. Errors are diagnostics, also those of what Get
// returned.
type Store interface {
	// Get opens an archive.
	Get(ctx context.Context, digest string) (io.ReadCloser, error)
	// Put stores size bytes of archive under the digest, whole or not at all.
	Put(ctx context.Context, digest string, archive *os.File, size int64) error
	// List returns the archives, oldest first.
	List(ctx context.Context) ([]Item, error)
	// Remove takes an archive away; one that is not there is an error.
	Remove(ctx context.Context, digest string) error
}

// Options say how a store is reached.
type Options struct {
	Credentials Credentials
	// Stall is how long it may send or take next to nothing.
	Stall time.Duration
	// S3Program is yoi-s3; "" is the one beside this program.
	S3Program string
}

// Open returns the store at a location. It is not looked at before it is used.
func Open(l snapshot.Location, o Options) (Store, error) {
	o.Stall = policy.SnapshotLimits{StallTimeout: o.Stall}.Normalize().StallTimeout
	switch l.Scheme {
	case "file":
		return directory{l.Path}, nil
	case "http", "https":
		if err := o.Credentials.mayGoTo(l.Scheme, l.Host); err != nil {
			return nil, err
		}
		return newHTTPStore(l, o), nil
	case "s3":
		if l.Endpoint != "" {
			if scheme, host, _ := cutScheme(l.Endpoint); o.Credentials.mayGoTo(scheme, host) != nil {
				return nil, o.Credentials.mayGoTo(scheme, host)
			}
		}
		return s3Program{l, o}, nil
	}
	return nil, policy.Errorf(policy.CodeSnapshotStoreInvalid, opStore, "%q is no kind of snapshot store", policy.Printable(l.Scheme))
}

const opStore = "snapshot.store"

func failed(code policy.Code, message string, err error) *policy.Diagnostic {
	return policy.Errorf(code, opStore, "%s", message).Because(err)
}

func unknown(digest string, err error) error {
	return failed(policy.CodeRemoteSnapshotUnknown, "the store has no such snapshot", err).With("digest", digest)
}
