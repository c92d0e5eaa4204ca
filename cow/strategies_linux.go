package cow

import (
	"context"

	"yoi.dev/yoi-runtime/policy"
)

func platformStrategies() []Strategy {
	return []Strategy{btrfsSnapshot{}, overlay{}, treeCopy{clone: true}, treeCopy{}}
}

type btrfsSnapshot struct{}

func (btrfsSnapshot) Name() policy.StrategyName { return policy.StrategyBtrfsSnapshot }

type overlay struct{}

func (overlay) Name() policy.StrategyName { return policy.StrategyOverlay }

// treeCopy walks the tree file by file: reflink when clone is set, else copy.
type treeCopy struct{ clone bool }

func (s treeCopy) Name() policy.StrategyName {
	if s.clone {
		return policy.StrategyReflink
	}
	return policy.StrategyCopy
}

var _ context.Context
