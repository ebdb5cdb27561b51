-- Port of core/lease.py: which client holds how many tokens, until when. How a want becomes a share is in shares.lua.
--
-- <key>:l<i>  a hash: b is the book of rule i's ledger (the epoch of the root, then numbers), and c<client> is a lease
-- <key>:e<i>  the clients by the end of their leases
--
-- They live as long as the ledger. Only what a call is about is read, but for a new division, which reads all leases;
-- what has changed is written at the end (`save`). The spans of a call are ticks of this clock: the client's engine
-- allows for drift, on both ways.

do
  local MILLI, SPREAD, AGAIN, HEAD, EPOCH, PAGES = lending.MILLI, 16, 12, 80, 24, 13

  function lending.unpack_lease(packed)
    local lease = {known = true, answer = string.sub(packed, HEAD + 1)}
    lease.number, lease.seq, lease.held, lease.want, lease.share, lease.recall, lease.ends, lease.heard, lease.ttl,
      lease.turn = unpack_from('<dddddddddd', packed)
    return lease
  end

  function lending.pack_lease(lease)
    return pack('<dddddddddd', lease.number, lease.seq, lease.held, lease.want, lease.share, lease.recall, lease.ends,
      lease.heard, lease.ttl, lease.turn) .. lease.answer
  end

  -- The book of a ledger: made if there is none, or if it is of another epoch of the root: what it says was lent then
  -- must not come back now. `named` is what a first lease's number comes after: no call about a lease of a ledger that
  -- is gone may be taken for one about a lease of this one.
  function lending.open(ledger, named, epoch)
    local book = {leases = {}, place = ledger.key .. ':l' .. ledger.index, queue = ledger.key .. ':e' .. ledger.index}
    local stored = ledger.known and call('HGET', book.place, 'b')
    if not stored or string.sub(stored, 1, EPOCH) ~= epoch then
      stored = nil
      call('DEL', book.place, book.queue)
    end
    book.epoch = epoch
    book.ttl, book.predict, book.named, book.turn, book.clients, book.held, book.short, book.recalled, book.changes,
      book.direct_share, book.window_end, book.latest, book.capacity = unpack_from('<ddddddddddddd',
      stored or pack('<ddddddddddddd', 0, 0, named, 0, 0, 0, 0, 0, 0, 0, FOREVER, 0, 0), stored and EPOCH + 1 or 1)
    if ledger.lent and ledger.lent ~= book.held then
      error('HEADWAY_LOST') -- evicted: what is lent would never come back
    end
    book.before, book.waiting, book.fresh = book.clients, 0, not stored
    book.demand = stored and string.sub(stored, EPOCH + 8 * PAGES + 1) or ''
    ledger.book, ledger.away, ledger.poll = book, book.held, math.max(1, floor(book.ttl / 3))
    return book
  end

  -- What a client of these times says; those that were said last count for single permits.
  function lending.agree(ledger, ttl, predict)
    local book = ledger.book
    local span = ledger.kind.span(ledger, ttl)
    if book.ttl ~= ttl or book.predict ~= predict or book.span ~= span then
      book.ttl, book.predict, book.span = ttl, predict, span
      ledger.poll = math.max(1, floor(ttl / 3))
      book.demand = lending.open_demand(lending.demand_state(book.demand), predict, span)
    end
  end

  function lending.save(ledger)
    local book, fields, ends = ledger.book, {}, {}
    for client, lease in pairs(book.leases) do
      if lease and lease.dirty then
        fields[#fields + 1], fields[#fields + 2] = 'c' .. client, lending.pack_lease(lease)
        if lease.moved then
          ends[#ends + 1], ends[#ends + 2] = string.format('%.0f', lease.ends), client
        end
        lease.dirty, lease.moved = false, false
      end
    end
    for from = 1, #fields, 200 do
      call('HSET', book.place, unpack(fields, from, math.min(from + 199, #fields)))
    end
    for from = 1, #ends, 200 do
      call('ZADD', book.queue, unpack(ends, from, math.min(from + 199, #ends)))
    end
    local numbers = pack('<ddddddddddddd', book.ttl, book.predict, book.named, book.turn, book.clients, book.held,
      book.short, book.recalled, book.changes, book.direct_share, book.window_end, book.latest,
      ledger.capacity or ledger.rule.capacity)
    call('HSET', book.place, 'b', book.epoch .. numbers .. lending.demand_state(book.demand))
  end

  -- One client's lease, or nil.
  function lending.lease_of(book, client)
    if book.leases[client] == nil then
      local packed = call('HGET', book.place, 'c' .. client)
      book.leases[client] = packed and lending.unpack_lease(packed) or false
    end
    return book.leases[client] or nil
  end

  -- All of them, in the order of their last calls.
  function lending.all(book)
    local stored, list = call('HGETALL', book.place), {}
    for i = 1, #stored, 2 do
      local client = string.sub(stored[i], 2)
      if stored[i] ~= 'b' and book.leases[client] == nil then
        book.leases[client] = lending.unpack_lease(stored[i + 1])
      end
    end
    for client, lease in pairs(book.leases) do
      if lease then
        lease.client = client
        list[#list + 1] = lease
      end
    end
    return list
  end

  local function by_turn(one, other)
    return one.turn < other.turn
  end

  -- How many tokens a client lacks of what it wants, as far as that is its share; what is left over is not missed.
  local function lacks(share, want, held)
    local lacking = math.min(share, math.ceil(want / MILLI)) - held
    return lacking > 0 and lacking or 0
  end

  local function short_of(lease)
    return lacks(lease.share, lease.want, lease.held)
  end

  function lending.set_held(ledger, lease, held)
    local book = ledger.book
    book.short = book.short - short_of(lease)
    book.held = book.held + held - lease.held
    lease.held, lease.dirty = held, true
    book.short = book.short + short_of(lease)
    ledger.away = book.held
  end

  -- Give every client its share anew. Of leases that no call of this script is about, only what is needed is read, and
  -- only a share that is another is written: there may be thousands.
  function lending.divide(ledger, now)
    local book = ledger.book
    local direct = lending.expected(book.demand, now)
    if book.waiting > 0 then
      direct = math.max(direct, MILLI * math.max(book.waiting, 2 * book.direct_share))
    end
    local stock = ledger.kind.balance(ledger, now)
    local wants, held, turns, before, names, records, m = {}, {}, {}, {}, {}, {}, 0
    local stored = call('HGETALL', book.place)
    for i = 1, #stored, 2 do
      if stored[i] ~= 'b' and not book.leases[string.sub(stored[i], 2)] then
        m = m + 1
        names[m], records[m] = stored[i], stored[i + 1]
        held[m], wants[m], before[m] = unpack_from('<ddd', stored[i + 1], 17)
        turns[m] = unpack_from('<d', stored[i + 1], 73)
      end
    end
    for _, lease in pairs(book.leases) do
      if lease then
        m = m + 1
        held[m], wants[m], before[m], turns[m], records[m] = lease.held, lease.want, lease.share, lease.turn, lease
      end
    end
    if direct > 0 then
      -- What lies here is at hand for single permits: they hold it, as it were.
      held[m + 1], wants[m + 1], turns[m + 1] = math.max(0, stock), direct, book.turn + 1
    end
    local parts, fields = lending.shares(math.max(0, stock + book.held), wants, held, turns), {}
    book.changes, book.short, book.direct_share = 0, 0, direct > 0 and parts[m + 1] or 0
    for i = 1, m do
      local part = parts[i]
      if part ~= before[i] and names[i] then
        local record = records[i]
        fields[#fields + 1] = names[i]
        fields[#fields + 1] = string.sub(record, 1, 32) .. pack('<d', part) .. string.sub(record, 41)
      elseif part ~= before[i] then
        records[i].share, records[i].dirty = part, true
      end
      book.short = book.short + lacks(part, wants[i], held[i])
    end
    for from = 1, #fields, 200 do
      call('HSET', book.place, unpack(fields, from, math.min(from + 199, #fields)))
    end
  end

  function lending.changed(ledger, now)
    local book = ledger.book
    book.changes = book.changes + 1
    if book.changes * SPREAD >= book.clients then
      lending.divide(ledger, now)
    end
  end

  function lending.finish(ledger, now, client, lease, until_when)
    local book = ledger.book
    if lease.held > 0 then
      ledger.kind.forfeit(ledger, now, lease.held, until_when)
    end
    lending.set_held(ledger, lease, 0)
    book.short = book.short - short_of(lease)
    book.recalled = book.recalled - lease.recall
    if lease.known then
      call('HDEL', book.place, 'c' .. client)
      call('ZREM', book.queue, client)
      book.clients, book.changes = book.clients - 1, book.changes + 1
    end
    book.leases[client] = false
  end

  -- Take back the tokens of clients that were not heard of until the end of their lease. Whether there were any.
  function lending.expire(ledger, now)
    local book = ledger.book
    if now >= book.window_end then
      -- The tokens are gone, and their holders are not: what they want still counts.
      book.window_end = FOREVER
      local leases = lending.all(book)
      table.sort(leases, by_turn)
      for _, lease in ipairs(leases) do
        book.named = book.named + 1
        lease.number, lease.ends, lease.recall, lease.moved = book.named, lease.heard + lease.ttl, 0, true
        book.latest = math.max(book.latest, lease.ends)
        lending.set_held(ledger, lease, 0)
      end
      book.recalled, book.changes = 0, book.clients
      lending.save(ledger)
    end
    if book.clients == 0 then
      return false
    end
    local over = {}
    for i, client in ipairs(call('ZRANGEBYSCORE', book.queue, '-inf', string.format('%.0f', now))) do
      over[i] = lending.lease_of(book, client) or error('HEADWAY_LOST')
      over[i].client = client
    end
    table.sort(over, by_turn)
    for _, lease in ipairs(over) do
      lending.finish(ledger, now, lease.client, lease, lease.ends)
    end
    return #over > 0
  end

  -- Take in what is handed back; what is neither handed back nor held any more was spent or lost.
  function lending.settle(ledger, now, lease, ask)
    local left = lease.held - ask.total
    local kept = math.min(ask.holding, left)
    for i = 1, #ask.back, 2 do
      ledger.kind.deposit(ledger, now, ask.back[i], ask.back[i + 1])
    end
    if kept < left then
      ledger.kind.forfeit(ledger, now, left - kept, now)
    end
    lending.set_held(ledger, lease, kept)
  end

  function lending.renew(ledger, now, lease, ask)
    local book, kind = ledger.book, ledger.kind
    book.recalled = book.recalled - lease.recall
    local known = lease.known
    book.turn = book.turn + 1
    lease.recall, lease.turn, lease.known, lease.dirty, lease.moved = 0, book.turn, true, true, true
    if not known then
      book.clients = book.clients + 1
      book.leases[ask.client] = lease
    end
    if lease.want ~= ask.want or not known or book.direct_share > 0 or book.waiting > 0 then
      book.short = book.short - short_of(lease)
      lease.want = ask.want
      book.short = book.short + short_of(lease)
      lending.changed(ledger, now)
    end
    local more = math.min(lease.share - lease.held, kind.balance(ledger, now) - book.direct_share)
    local batch, granted = more > 0 and kind.withdraw(ledger, now, more) or {}, 0
    for i = 1, #batch, 2 do
      granted = granted + batch[i]
    end
    lending.set_held(ledger, lease, lease.held + granted)
    local lacking = book.short + book.direct_share - kind.balance(ledger, now) - book.recalled
    lease.recall = math.max(0, math.min(lease.held - lease.share, lacking))
    book.recalled = book.recalled + lease.recall
    local ttl = math.min(ask.ttl, kind.longest_lease and kind.longest_lease(ledger, now) or FOREVER)
    book.window_end = ttl < ask.ttl and now + ttl or FOREVER
    lease.ends, lease.heard, lease.seq, lease.ttl = now + ttl, now, ask.seq, ask.ttl
    book.latest = math.max(book.latest, lease.ends)
    local again = short_of(lease) > 0 and floor(ask.ttl / AGAIN) or 0
    local said = {ask.seq, ask.attempt, lease.number, lease.recall, ttl, again, 0, #batch / 2}
    for i = 1, #batch do
      said[8 + i] = batch[i]
    end
    lease.answer = pack_numbers(said)
    return lease.answer
  end

  -- One call of a client: its answer, packed; nil if a later call of it was heard already.
  function lending.sync(ledger, now, ask)
    local book = ledger.book
    lending.expire(ledger, now)
    local lease = lending.lease_of(book, ask.client)
    if lease and ask.seq <= lease.seq then
      return ask.seq == lease.seq and lease.answer or nil
    end
    if ask.lease ~= 0 and (not lease or lease.number ~= ask.lease or ask.total > lease.held) then
      return pack('<dddddddd', ask.seq, ask.attempt, 0, 0, 0, 0, 1, 0)
    end
    if ask.lease == 0 and lease then
      -- It knows of no lease: the answer that named this one was lost for good.
      lending.finish(ledger, now, ask.client, lease, now)
      lease = nil
    end
    if not lease then
      book.named = book.named + 1
      lease = {
        number = book.named, seq = -1, held = 0, want = 0, share = 0, recall = 0, ends = 0, heard = 0, ttl = 0,
        turn = 0,
      }
    else
      lending.settle(ledger, now, lease, ask)
    end
    if ask.closing == 1 then
      lending.finish(ledger, now, ask.client, lease, now)
      return pack('<dddddddd', ask.seq, ask.attempt, 0, 0, 0, 0, 0, 0)
    end
    return lending.renew(ledger, now, lease, ask)
  end

  -- A request for single permits: it is demand, and while it has to wait for tokens of clients, shares may change.
  function lending.direct(ledger, now, cost, times)
    local book = ledger.book
    lending.expire(ledger, now)
    lending.note_demand(book.demand, now, cost * times)
    if book.clients > 0 and ledger.kind.wait(ledger, now, cost) > 0 then
      lending.changed(ledger, now)
    end
  end
end
