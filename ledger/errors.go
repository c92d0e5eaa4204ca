package ledger

import (
	"context"
	"errors"
	"fmt"

	"yoi.dev/yoi-runtime/policy"
)

var errTooLong = errors.New("a record is longer than 64 KiB")

// failed is the diagnostic of a disk that does not take what it is given.
func failed(op string, err error) error {
	return policy.Errorf(policy.CodeLedgerFailed, op, "the cleanup ledger cannot be written").Because(err)
}

// unreadable is the diagnostic of a ledger that cannot be looked at. Not being
// able to look must stop cleanup as surely as a broken chain.
func unreadable(op string, err error) error {
	return policy.Errorf(policy.CodeLedgerFailed, op, "the cleanup ledger cannot be read").Because(err)
}

func broken(op string, b *Break) error {
	return policy.Errorf(policy.CodeLedgerBroken, op, "the cleanup ledger is broken in stream %s, segment %s, line %d: %s",
		b.Stream, policy.Printable(b.Segment), b.Line, b.Reason).
		With("stream", b.Stream).With("segment", b.Segment).
		With("line", fmt.Sprint(b.Line)).With("offset", fmt.Sprint(b.Offset))
}

func canceled(op string, ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return policy.Errorf(policy.CodeCanceled, op, "the operation was canceled").Because(err)
	}
	return nil
}

func badRequest(op, format string, args ...any) error {
	return policy.Errorf(policy.CodeBadRequest, op, format, args...)
}

// asLedgerError makes sure that what leaves the package is a diagnostic.
func asLedgerError(op string, err error) error {
	var d *policy.Diagnostic
	if err == nil || errors.As(err, &d) {
		return err
	}
	return unreadable(op, err)
}
