-- For ledgers of which no client holds tokens.

local lending = nil
