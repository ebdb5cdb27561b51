-- The queue is served before anything is decided, and at the end if something came back since.
local blocked = waiting > 0 and serve() or nil
local function serve_again()
  if released then
    blocked, released = waiting > 0 and serve() or nil, false
  end
end

for index = from, #ARGV do
  local command = index == from and first or commands(index)
  local what = command[1]
  if what == ACQUIRE then
    -- ticket, 0 for now, 1 to wait or 2 to reserve (and HELD more, if it brackets a call), longest wait, how many
    -- times (with tickets in a row), costs
    local patience, longest = command[3] % HELD, command[4]
    local patient, firm = patience > 0, patience == 2
    command.held = command[3] >= HELD
    local last = command[2] + command[5] - 1
    if lending then
      lending.note_direct(command, 5, command[5] - done)
    end
    serve_again()
    for ticket = command[2] + done, last do
      local slot, holding, ready, never, least = weigh(own, command, 5, blocked, firm)
      if slot and (slot == now or (patient and slot - now <= longest)) then
        said[#said + 1] = 1
        said[#said + 1] = slot - now
        take(own, command, 5, slot, said)
      elseif never then
        said[#said + 1] = 3
      elseif patient and not slot and can_queue and not firm and least - now <= longest then
        -- All requests for the same stand behind the first of them.
        local deadline = longest < FOREVER and now + longest or FOREVER
        stand(ticket, last - ticket + 1, deadline, command, 5, ready, holding)
        blocked = blocked or {}
        for i = 1, count do
          if #KEYS == 1 or holding[own[i].id] then
            blocked[own[i].id] = blocked[own[i].id] or (ready > now and ready or now + lease / 3)
          end
        end
        break
      else
        said[#said + 1] = 0
        snapshot(command, 5, said)
      end
    end
    done = 0
  elseif (what == RELEASE or what == WITHDRAW) and epoch_seen ~= '' and epoch_seen ~= epoch then
    -- of a ledger that is no more
  elseif what == RELEASE then
    -- how, ticket (0: none), then cost, mark, tally and actual cost of each rule; or, to enter (5), instead of an
    -- actual cost the time from which its call may be dispatched
    local how = command[2]
    if command[3] > 0 and can_queue then
      call('HDEL', root .. ':g', process .. pack('<d', command[3]))
    end
    for i = 1, count do
      local cost, mark, tally, actual = command[4 * i], command[4 * i + 1], command[4 * i + 2], command[4 * i + 3]
      local ledger = own[i]
      local kind = ledger.kind
      if how == 4 and (cost > 0 or actual > 0) then
        kind.settle(ledger, now, cost, mark, tally, actual)
      elseif cost > 0 then
        if how == 1 and kind.complete then
          kind.complete(ledger, now, cost, mark)
        elseif how == 2 then
          kind.cancel(ledger, now, cost, mark, tally)
        elseif how == 3 and kind.abandon then
          kind.abandon(ledger, now, cost, mark)
        elseif how == 5 and kind.enter then
          kind.enter(ledger, now, cost, mark, tally, actual)
        end
      end
    end
    released = true
  elseif what == WITHDRAW then
    withdraw(command[2], command, 2)
    released = true
  elseif what == POLL then
    serve_again()
    poll(command, 2, said)
  elseif what == ECHO then
    for i = 2, #command do
      said[#said + 1] = command[i]
    end
  elseif what == SYNC and lending then
    lending.answer(ARGV[index])
    snapshot(lending.ones, 0, said)
    released = true
  elseif what == RENEW then
    -- rule, cost, mark
    local ledger = own[command[2]]
    local mark = command[4]
    if ledger.kind.renew then
      mark = ledger.kind.renew(ledger, now, command[3], mark)
      if mark < 0 and quarantined > now then
        mark = ledger.kind.take(ledger, now, command[3]) -- forgotten, and its holder lives: that is what we wait for
      end
    end
    said[#said + 1] = mark
  elseif what == PEEK then
    serve_again()
    snapshot(command, 1, said)
  elseif what == PAUSE and command[3] == 1 then
    -- of these metrics' ledgers alone
    for i = 1, count do
      own[i].paused, own[i].moved = command[2] > 0 and math.max(own[i].paused, now + command[2]) or 0, true
    end
    released = true
  elseif what == PAUSE then
    -- for how long, and (1) whether of these ledgers alone
    local before = base
    paused = command[2] > 0 and math.max(paused, now + command[2]) or 0
    base = math.max(now, quarantined, paused, halted)
    local by = base - before
    shift = shift + by
    for i = 1, count do
      if own[i].kind.shift then
        own[i].kind.shift(own[i], now, by)
      end
    end
    call('PUBLISH', string.match(root, '^(.-):{') .. ':news', root)
    released = true
  elseif what == RESET then
    for i = 1, count do
      for _, runs in ipairs(own[i].lists or {}) do
        call('DEL', runs.key)
      end
      call('HDEL', own[i].key, 'a' .. i)
      if own[i].away and own[i].away > 0 then
        own[i].kind.forget(own[i], now, own[i].away) -- what lies here is as new, what is lent stays lent
      elseif own[i].kind.anew then
        own[i].kind.anew(own[i], now)
      else
        own[i].kind.open(own[i], nil)
      end
      own[i].paused, own[i].moved = 0, true
    end
    -- (1) of these ledgers alone: a pause of all holds
    if paused > now and command[2] ~= 1 then
      paused = 0
      call('PUBLISH', string.match(root, '^(.-):{') .. ':news', root)
    end
    base = math.max(now, quarantined, paused, halted)
    released = true
  elseif what == QUARANTINE then
    call('PUBLISH', string.match(root, '^(.-):{') .. ':news', root)
  end
end
serve_again()
close_queue()
if lending then
  lending.close()
end
