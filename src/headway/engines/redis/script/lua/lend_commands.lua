-- Leases in a script: before anything is decided they expire, and what has changed is written down at the end.

function lending.begin(ledger)
  local book = lending.open(ledger, now, epoch)
  book.waiting = waiting
  if book.clients > 0 and call('ZCARD', book.queue) ~= book.clients then
    error('HEADWAY_LOST') -- evicted: some leases would never end
  end
  if book.ttl > 0 then
    lending.agree(ledger, book.ttl, book.predict)
    if lending.expire(ledger, now) then
      released = true
    end
    if book.clients > 0 and book.capacity ~= (ledger.capacity or ledger.rule.capacity) then
      lending.divide(ledger, now) -- there is another limit since
    end
  end
end

if format == LENDING then
  for i = 1, count do
    if own[i].kind.withdraw then
      lending.begin(own[i])
      if own[i].book.ttl == 0 then
        own[i].book = nil -- those of other keys lend; no client ever held tokens of this one
      end
    end
  end
end

-- So many requests for these single permits.
function lending.note_direct(costs, offset, times)
  for i = 1, count do
    local cost = costs[offset + i]
    if cost > 0 and own[i].book then
      own[i].book.waiting = waiting
      lending.direct(own[i], now, cost, times)
    end
  end
end

-- In a quarantine no lease is known, and none is noted: a node to which the slot migrates has the old ones not yet, and
-- would refuse them if there were others. A new lease is one without tokens, which is void when it is asked for again.
function lending.decline(ask)
  if ask.lease ~= 0 then
    return pack('<dddddddd', ask.seq, ask.attempt, 0, 0, 0, 0, 1, 0)
  elseif ask.closing == 1 then
    return pack('<dddddddd', ask.seq, ask.attempt, 0, 0, 0, 0, 0, 0)
  end
  return pack('<dddddddd', ask.seq, ask.attempt, now, 0, ask.ttl, quarantined - now, 0, 0)
end

-- SYNC: TTL and prediction window; then of each rule whether there is a call (1), and if so its seq, attempt, lease,
-- want, holding, whether it closes the lease, the length of the client's name, how many pairs are handed back; the
-- name, filled up to whole numbers, and the pairs. The answer, of each rule: 0 if there is none; or 1, its seq,
-- attempt, lease, recall, TTL, when to ask again, whether it is void, how many pairs of tokens, and these.
function lending.answer(packed)
  local _, ttl, predict = unpack_from('<ddd', packed)
  local at = 25
  for i = 1, count do
    local asked = unpack_from('<d', packed, at)
    at = at + 8
    local answer
    if asked == 1 then
      local length, pairs_back
      local ask = {ttl = ttl, back = {}, total = 0}
      ask.seq, ask.attempt, ask.lease, ask.want, ask.holding, ask.closing, length, pairs_back =
        unpack_from('<dddddddd', packed, at)
      ask.client = string.sub(packed, at + 64, at + 63 + length)
      at = at + 64 + math.ceil(length / 8) * 8
      for j = 1, 2 * pairs_back, 2 do
        ask.back[j], ask.back[j + 1] = unpack_from('<dd', packed, at)
        ask.total, at = ask.total + ask.back[j], at + 16
      end
      if quarantined > now then
        answer = lending.decline(ask)
      else
        if not own[i].book then
          lending.begin(own[i])
        end
        own[i].book.waiting = waiting
        lending.agree(own[i], ttl, predict)
        answer = lending.sync(own[i], now, ask)
      end
    end
    said[#said + 1] = answer and 1 or 0
    if answer then
      for j = 1, #answer, 8 do
        said[#said + 1] = unpack_from('<d', answer, j)
      end
    end
  end
end

-- Write it down. With metrics the ledgers of other keys may lend as well: so it is counted which do.
function lending.close()
  local lend, change, opened_books = false, 0, false
  for _, ledger in pairs(opened) do
    local book = ledger.book
    if book then
      lending.save(ledger)
      opened_books = true
      lend = lend or book.clients > 0
      change = change + (book.clients > 0 and 1 or 0) - (book.before > 0 and 1 or 0)
      ledger.lent_for = book.clients > 0 and book.latest - now + ledger.kind.forfeited(ledger) or 0
    end
  end
  if change ~= 0 and #KEYS > 1 then
    lend = call('HINCRBY', root, 'b', change) > 0
  elseif #KEYS > 1 then
    lend = format == LENDING
  end
  if opened_books then
    format = lend and LENDING or FORMAT
  end
end

-- The two keys live as long as the ledger; one that was made just now has no time to live yet.
function lending.keep(ledger, ticks, all)
  local book = ledger.book
  if all or book.fresh or book.before == 0 then
    local ms = math.ceil(ticks / 1000) + 1
    call('PEXPIRE', book.place, ms)
    call('PEXPIRE', book.queue, ms)
  end
end
